//! Planning of backward requests.
use super::Stated;
use super::sealed::{Kernels, Request, Subject};
use crate::lower::Refusal;
use crate::passes::backward::{self, Backward};
use crate::place::Place;
use crate::request::{AttentionBackward, Scratch};
use crate::select::Choice;
use crate::{Capabilities, Error, Launch, Tuning, validate};

impl Request for AttentionBackward<'_> {
    type Subject = Stated<AttentionBackward<'static>>;

    fn is(&self, subject: &Self::Subject) -> bool {
        self.unconfigured() == subject.request
    }

    fn valid(&self, planned: Option<&Self::Subject>) -> Result<Self::Subject, Error> {
        let problem = validate::backward(self, planned.map(|planned| &planned.problem))?;
        Ok(Stated { request: self.unconfigured(), problem })
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        let mut written = [self.dq, self.dk, self.dv].map(|view| view.address).to_vec();
        written.extend(self.dsinks.map(|dsinks| dsinks.address));
        if let Scratch::Memory { workspace, .. } = self.scratch {
            written.push(workspace.address);
        }
        written
    }
}

impl AttentionBackward<'_> {
    /// Returns the request without `config`. The result borrows nothing.
    fn unconfigured(&self) -> AttentionBackward<'static> {
        let AttentionBackward { forward, d_o, d_lse, dq, dk, dv, dsinks, scratch } = *self;
        AttentionBackward { forward: forward.unconfigured(), d_o, d_lse, dq, dk, dv, dsinks, scratch }
    }
}

impl Subject for Stated<AttentionBackward<'static>> {
    type Kernel = Backward;

    fn select(&self, _: Option<&str>, on: &Capabilities, _: &Tuning) -> Result<Choice<Backward>, Error> {
        backward::choose(&self.request, &self.problem, on)
    }

    fn is_as_planned(&self, planned: &Self, _: &Backward) -> Result<(), Error> {
        let has_dsinks = [self, planned].map(|stated| stated.request.dsinks.is_some());
        if has_dsinks[0] != has_dsinks[1] {
            let [asked, planned] = has_dsinks.map(|has| if has { "some" } else { "none" });
            let expected = format_args!("the plan is for {planned}; make another plan");
            return Err(Error::invalid("dsinks", asked, expected));
        }
        let (asked, planned) = (&self.problem, &planned.problem);
        if asked.means(planned) { Ok(()) } else { Err(validate::another(asked, planned)) }
    }

    fn lower(&self, passes: &Backward, launch: &mut Launch) -> Result<(), Refusal> {
        backward::lower(&self.request, &self.problem, passes, launch)
    }

    fn scratch(&self) -> Scratch {
        self.request.scratch
    }
}

impl Kernels for Backward {
    fn places(&self) -> impl Iterator<Item = Place> {
        self.kernels()
    }

    fn scratch_bytes(&self) -> [u64; 2] {
        self.scratch_bytes()
    }
}
