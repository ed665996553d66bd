//! Planning of attention requests.
use super::sealed::{Kernels, Request, Subject};
use crate::layout::Layout;
use crate::lower::Refusal;
use crate::passes::{self, Passes};
use crate::place::Place;
use crate::request::{AttentionRequest, Scratch};
use crate::select::{Choice, Query};
use crate::{Capabilities, Error, Launch, Tuning, validate};

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
    ) -> Result<Choice<Passes>, Error> {
        let r = &self.anywhere();
        let (problem, scratch) = (&r.problem(), r.scratch);
        let query = Query::new(problem, Layout::of(r), on, tuning, scratch);
        passes::choose(r, &query, config)
    }

    fn is_as_planned(&self, planned: &Self, kernel: &Passes) -> Result<(), Error> {
        passes::are_as_planned(self, planned, kernel)
    }

    fn lower(&self, kernel: &Passes, launch: &mut Launch) -> Result<(), Refusal> {
        passes::lower(self, kernel, launch)
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
