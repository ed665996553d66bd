//! Planning of attention requests.
use super::ScratchBytes;
use super::sealed::{Kernels, Request, Subject};
use crate::Problem;
use crate::layout::Layout;
use crate::lower::Refusal;
use crate::passes::{self, Passes};
use crate::place::Place;
use crate::request::{AttentionRequest, Parts, Places, Scratch};
use crate::select::{Choice, Query};
use crate::{Capabilities, Error, Launch, Tuning, validate};

/// The reason for a kernel that does not run.
pub(super) const EMPTY: &str = "there is no query: the launch does nothing";

/// A valid request without the name of a kernel, and the problem that it states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stated<R> {
    pub(super) request: R,
    pub(super) problem: Problem,
}

impl Request for AttentionRequest<'_> {
    type Subject = Stated<AttentionRequest<'static>>;

    fn is(&self, subject: &Self::Subject) -> bool {
        match self.config {
            None => *self == subject.request,
            Some(_) => self.unconfigured() == subject.request,
        }
    }

    fn valid(&self, planned: Option<&Self::Subject>) -> Result<Self::Subject, Error> {
        let (problem, _) = validate::attention(self, planned.map(|planned| &planned.problem))?;
        Ok(Stated { request: self.unconfigured(), problem })
    }

    fn is_moved(&self, subject: &Self::Subject, place: impl FnOnce(Places<'_>)) -> bool {
        let mut moved = *self;
        place(moved.places());
        moved.is(subject)
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        let mut written = vec![self.o.address];
        written.extend(self.max_logits_head.map(|heads| heads.address));
        written.extend(self.rows().named().filter_map(|(_, view)| Some(view?.address)));
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

impl Subject for Stated<AttentionRequest<'static>> {
    type Kernel = Passes;

    fn select(
        &self,
        config: Option<&str>,
        on: &Capabilities,
        tuning: &Tuning,
    ) -> Result<Choice<Passes>, Error> {
        if self.problem.is_empty() {
            let problem = self.problem.filled();
            let query = Query::new(&problem, Layout::ANY, on, tuning, Scratch::None);
            return Ok(Choice::new(passes::whole(&query, config)?.kernel, EMPTY));
        }
        passes::choose(&self.request.anywhere(), &self.problem, config, on, tuning)
    }

    fn is_as_planned(&self, planned: &Self, kernel: &Passes) -> Result<(), Error> {
        passes::are_as_planned(self.parts(), planned.parts(), kernel)
    }

    fn lower(&self, kernel: &Passes, launch: &mut Launch) -> Result<(), Refusal> {
        if self.problem.is_empty() {
            launch.idle(kernel.first());
            return Ok(());
        }
        passes::lower(self.parts(), kernel, launch)
    }

    fn scratch(&self) -> Scratch {
        self.request.scratch
    }

    fn allocated(mut self, bytes: ScratchBytes) -> Self {
        self.request.scratch = self.request.scratch.allocated(bytes);
        self
    }

    fn scratch_bytes(&self, kernel: &Passes) -> [u64; 2] {
        if self.problem.is_empty() { [0; 2] } else { kernel.scratch_bytes() }
    }

    fn parts(&self) -> Option<Parts> {
        let parts = validate::attention(&self.request, Some(&self.problem)).ok().map(|(_, parts)| parts);
        parts.filter(|_| !self.problem.is_empty())
    }

    fn places(&mut self) -> Places<'_> {
        self.request.places()
    }
}

impl Scratch {
    /// Returns memory of this size, if the caller has yet to allocate it.
    pub(super) fn allocated(self, bytes: ScratchBytes) -> Self {
        if self != Scratch::Fastest || bytes.workspace == 0 {
            return self;
        }
        // No memory of a request is at these addresses.
        bytes.at(1 << 62, Some(1 << 63))
    }
}

impl<R> Stated<R> {
    const fn parts(&self) -> (&R, &Problem) {
        (&self.request, &self.problem)
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
