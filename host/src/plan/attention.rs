//! Planning of attention requests.
mod shared_prefixes;

use super::Chosen;
use super::sealed::{Kernels, Request, Subject};
use crate::lower::{self, Refusal};
use crate::place::Place;
use crate::request::{AttentionRequest, Scratch};
use crate::schedule::{Few, Passes, Schedule, Scheduled};
use crate::select::{self, ASKED, Choice, Query, UNSPLIT};
use crate::{Capabilities, Error, Launch, Tuning, validate};

/// Selects a kernel for a valid problem and schedules it. If the request names a kernel, that kernel is
/// selected; otherwise the planner chooses.
///
/// # Errors
/// Returns the errors of [`select::attention`] and of [`Scheduled::new`].
pub(super) fn choose(query: &Query<'_>, config: Option<&str>) -> Result<Chosen<Scheduled>, Error> {
    let Query { problem, on, scratch, .. } = *query;
    let (few, Choice { kernel, reason, fallback }) = match select::many(query, config)? {
        None => (None, select::attention(query, config)?),
        Some(many) => {
            // If TMA does not accept the tensors of a batch without a named kernel, one kernel takes all
            // sequences.
            let all = config.is_none().then(|| select::attention(query, None)).transpose()?;
            let fallback = all.map(|all| all.fallback.unwrap_or(all.kernel));
            (select::few(problem, many.kernel), Choice { fallback, ..many })
        }
    };
    let kernel = Scheduled::new(problem, kernel, few, on, |bytes| scratch.allows(bytes))?;
    // The fallback has smaller tiles. If there are too many tiles, the plan has no fallback.
    let fallback = fallback.and_then(|kernel| Scheduled::new(problem, kernel, None, on, |_| false).ok());
    let lacks_workspace = match (&kernel.schedule, &kernel.few) {
        (Schedule::Decode(decode), _) | (_, Some(Few { decode, .. })) => decode.lacks_workspace,
        (Schedule::Tiles(_), None) => false,
    };
    let reason = if lacks_workspace && reason != ASKED { UNSPLIT } else { reason };
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

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        let mut written = vec![self.o.address];
        written.extend(self.lse.map(|lse| lse.address));
        if let Scratch::Memory { workspace, counters } = self.scratch {
            written.push(workspace.address);
            written.extend(counters.map(|counters| counters.address));
        }
        written
    }

    fn config(&self) -> Option<&str> {
        self.config
    }
}

impl Subject for AttentionRequest<'static> {
    type Kernel = Passes;

    fn select(
        &self,
        config: Option<&str>,
        on: &Capabilities,
        tuning: &Tuning,
    ) -> Result<Chosen<Passes>, Error> {
        let r = &self.anywhere();
        let (problem, scratch) = (&r.problem(), r.scratch);
        let query = Query { problem, tensors: Some(r), on, tuning, scratch, merges_states: false };
        let whole = |reason: Option<&'static str>| {
            let Chosen { kernel, reason: own, fallback } = choose(&query, config)?;
            let fallback = fallback.map(Passes::whole);
            Ok(Chosen { kernel: Passes::whole(kernel), reason: reason.unwrap_or(own), fallback })
        };
        match &r.shared_prefixes {
            None => whole(None),
            Some(prefixes) => match shared_prefixes::choose_passes(r, prefixes, config, &query)? {
                Ok(passes) => Ok(passes),
                Err(reason) => whole(Some(reason)),
            },
        }
    }

    fn is_as_planned(&self, planned: &Self, kernel: &Passes) -> Result<(), Error> {
        shared_prefixes::are_as_planned(self, planned, kernel)?;
        let (asked, planned) = (self.problem(), planned.problem());
        if !asked.means(&planned) {
            return Err(validate::another(&asked, &planned));
        }
        // Decode kernels run with and without sinks.
        match kernel.main.schedule {
            Schedule::Tiles(_) if asked.sinks != planned.sinks => Err(validate::another(&asked, &planned)),
            Schedule::Tiles(_) | Schedule::Decode(_) => Ok(()),
        }
    }

    fn lower(&self, kernel: &Passes) -> Result<Launch, Refusal> {
        lower::passes(self, kernel)
    }

    fn scratch(&self) -> Scratch {
        self.scratch
    }
}

impl Kernels for Passes {
    fn places(&self) -> impl Iterator<Item = Place> {
        self.kernels()
    }

    fn scratch_bytes(&self) -> [u64; 2] {
        self.scratch_bytes()
    }
}
