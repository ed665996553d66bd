//! Planning of backward requests.
use super::sealed::{Kernels, Request, Subject};
use super::{ScratchBytes, Stated};
use crate::lower::Refusal;
use crate::passes::backward::{self, ALIGNMENT, Backward};
use crate::place::Place;
use crate::request::{AttentionBackward, Parts, Places, Scratch};
use crate::select::Choice;
use crate::{Capabilities, Error, Launch, Tuning, validate};

impl Request for AttentionBackward<'_> {
    type Subject = Stated<AttentionBackward<'static>>;

    fn is(&self, subject: &Self::Subject) -> bool {
        match self.forward.config {
            None => *self == subject.request,
            Some(_) => self.unconfigured() == subject.request,
        }
    }

    fn valid(&self, planned: Option<&Self::Subject>) -> Result<Self::Subject, Error> {
        let (problem, _) = validate::backward(self, planned.map(|planned| &planned.problem))?;
        Ok(Stated { request: self.unconfigured(), problem })
    }

    fn is_moved(&self, subject: &Self::Subject, place: impl FnOnce(Places<'_>)) -> bool {
        let mut moved = *self;
        place(moved.places());
        moved.is(subject)
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        let mut written = [self.dq, self.dk, self.dv].map(|view| view.address).to_vec();
        written.extend(self.dsinks.map(|dsinks| dsinks.address));
        written.extend(self.dtable.map(|dtable| dtable.address));
        written.extend(self.dbias.map(|dbias| dbias.address));
        if let Scratch::Memory { workspace, .. } = self.scratch {
            written.push(workspace.address);
        }
        written
    }
}

impl AttentionBackward<'_> {
    /// Returns the request without `config`. The result borrows nothing.
    fn unconfigured(&self) -> AttentionBackward<'static> {
        AttentionBackward { forward: self.forward.unconfigured(), ..*self }
    }
}

impl Subject for Stated<AttentionBackward<'static>> {
    type Kernel = Backward;

    fn select(&self, _: Option<&str>, on: &Capabilities, _: &Tuning) -> Result<Choice<Backward>, Error> {
        backward::choose(&self.request, &self.problem, on)
    }

    fn is_as_planned(&self, planned: &Self, _: &Backward) -> Result<(), Error> {
        let [asked, other] = [self, planned].map(|stated| optional_outputs(&stated.request));
        if let Some(((name, asked), (_, planned))) = asked.into_iter().zip(other).find(|(a, b)| a != b) {
            let expected = format_args!("the plan is for {}; make another plan", words(planned));
            return Err(Error::invalid(name, words(asked), expected));
        }
        backward::are_as_planned(&self.request, &planned.request)?;
        let (asked, planned) = (&self.problem, &planned.problem);
        if asked.means(planned) { Ok(()) } else { Err(validate::another(asked, planned)) }
    }

    fn lower(&self, passes: &Backward, launch: &mut Launch) -> Result<(), Refusal> {
        backward::lower(&self.request, &self.problem, passes, launch)
    }

    fn scratch(&self) -> Scratch {
        self.request.scratch
    }

    fn allocated(mut self, bytes: ScratchBytes) -> Self {
        self.request.scratch = self.request.scratch.allocated(bytes);
        self
    }

    fn parts(&self) -> Option<Parts> {
        // A variant's table, which must not overlap its gradient, does not move.
        let (_, parts) = validate::backward(&self.request, Some(&self.problem)).ok()?;
        self.request.dtable.is_none().then_some(Parts { alignment: ALIGNMENT, ..parts })
    }

    fn places(&mut self) -> Places<'_> {
        self.request.places()
    }
}

/// An output that a plan fixes.
#[derive(Clone, Copy, PartialEq)]
enum Output {
    /// The request does not want it.
    None,
    /// Its size depends on the problem alone.
    Some,
    /// A table of this number of entries.
    Entries(u32),
    /// A bias of these extents.
    Extents([usize; 4]),
}

/// Returns the outputs that a plan fixes, with their names.
fn optional_outputs(r: &AttentionBackward<'_>) -> [(&'static str, Output); 3] {
    let table = r.forward.variant.and_then(|variant| variant.table());
    let dtable = r.dtable.map(|_| table.map_or(Output::Some, |table| Output::Entries(table.count)));
    let dbias = r.dbias.as_ref().map(|dbias| Output::Extents(dbias.extents()));
    let all = [("dsinks", r.dsinks.map(|_| Output::Some)), ("dtable", dtable), ("dbias", dbias)];
    all.map(|(name, output)| (name, output.unwrap_or(Output::None)))
}

fn words(output: Output) -> String {
    match output {
        Output::None => "none".to_owned(),
        Output::Some => "some".to_owned(),
        Output::Entries(entries) => format!("{entries} entries"),
        Output::Extents(extents) => format!("extents {extents:?}"),
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
