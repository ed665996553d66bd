//! Planning of attention requests.
use super::Chosen;
use super::sealed::{Kernels, Request, Subject};
use crate::lower::{self, Refusal};
use crate::place::Place;
use crate::request::{AttentionRequest, Scratch};
use crate::schedule::{Few, Schedule, Scheduled};
use crate::select::{self, ASKED, Choice, Query, UNCUT};
use crate::{Capabilities, Error, Launch, Tuning, validate};

/// Selects a kernel for a valid problem and schedules it. If the request names a kernel, that kernel is
/// selected; otherwise the planner chooses.
///
/// # Errors
/// Returns the errors of [`select::attention`] and of [`Scheduled::new`].
pub(super) fn choose(query: &Query<'_>, config: Option<&str>) -> Result<Chosen<Scheduled>, Error> {
    let Query { problem, on, scratch, .. } = *query;
    let Choice { kernel, reason, fallback } = select::attention(query, config)?;
    let kernel = Scheduled::new(problem, kernel, on, |bytes| scratch.allows(bytes))?;
    // The fallback has smaller tiles. If there are too many tiles, the plan has no fallback.
    let fallback = fallback.and_then(|kernel| Scheduled::new(problem, kernel, on, |_| false).ok());
    let uncut = match (&kernel.schedule, &kernel.few) {
        (Schedule::Decode(decode), _) | (_, Some(Few { decode, .. })) => decode.uncut,
        (Schedule::Tiles(_), None) => false,
    };
    let reason = if uncut && reason != ASKED { UNCUT } else { reason };
    Ok(Chosen { kernel, reason, fallback })
}

impl Request for AttentionRequest<'_> {
    type Subject = AttentionRequest<'static>;

    fn subject(&self) -> Result<AttentionRequest<'static>, Error> {
        Ok(self.unconfigured())
    }

    fn validate(&self) -> Result<(), Error> {
        validate::attention(self).map(|_| ())
    }

    fn config(&self) -> Option<&str> {
        self.config
    }
}

impl Subject for AttentionRequest<'static> {
    type Kernel = Scheduled;

    fn select(
        &self,
        config: Option<&str>,
        on: &Capabilities,
        tuning: &Tuning,
    ) -> Result<Chosen<Scheduled>, Error> {
        let (problem, scratch) = (&self.problem(), self.scratch);
        choose(&Query { problem, tensors: Some(self), on, tuning, scratch }, config)
    }

    fn is_as_planned(&self, planned: &Self, kernel: &Scheduled) -> Result<(), Error> {
        let (asked, planned) = (self.problem(), planned.problem());
        if !asked.means(&planned) {
            return Err(validate::another(&asked, &planned));
        }
        // Decode kernels run with and without sinks.
        match kernel.schedule {
            Schedule::Tiles(_) if asked.sinks != planned.sinks => Err(validate::another(&asked, &planned)),
            Schedule::Tiles(_) | Schedule::Decode(_) => Ok(()),
        }
    }

    fn lower(&self, kernel: &Scheduled) -> Result<Launch, Refusal> {
        lower::attention(self, kernel)
    }

    fn scratch(&self) -> Scratch {
        self.scratch
    }
}

impl Kernels for Scheduled {
    fn places(&self) -> impl Iterator<Item = Place> {
        self.kernels()
    }

    fn scratch_bytes(&self) -> [u64; 2] {
        self.scratch_bytes()
    }
}
