//! Requests to launches: pure functions that touch no device.
//!
//! Every request takes the same road: it is validated, a kernel is selected, its work is scheduled, and both are
//! lowered to a [`Launch`]. A [`Plan`] keeps what does not depend on tensors; [`Plan::bind`] lowers again, for
//! other tensors of the same problem.
mod attention;
mod others;

pub use crate::launch::Launch;
pub use crate::problem::{CacheShape, Problem};

use crate::request::{AttentionRequest, Scratch};
use crate::{Capabilities, Contract, Error, Tuning, kernels, schedule, select, validate};

/// A request that is planned and launched: [`AttentionRequest`],
/// [`Append`](crate::request::Append) or [`Merge`](crate::request::Merge).
pub trait Request: sealed::Request {}
impl<R: sealed::Request> Request for R {}

/// The plan of a request.
pub type PlanOf<R> = Plan<<R as sealed::Request>::Subject>;

/// What this crate alone may do with requests.
pub(crate) mod sealed {
    use super::{Capabilities, Chosen, Error, Launch, Scratch, Tuning};
    use crate::lower::Refusal;
    use std::fmt::Debug;

    pub trait Request {
        type Subject: Subject;

        /// What plans keep of it: all that a launch depends on.
        fn subject(&self) -> Result<Self::Subject, Error>;

        /// Checks all of it.
        fn validate(&self) -> Result<(), Error>;

        /// The kernel that the caller named.
        fn config(&self) -> Option<&str> {
            None
        }
    }

    /// A request that borrows nothing and names no kernel.
    pub trait Subject: Copy + Debug + PartialEq {
        /// A kernel, with all that follows from sizes and device.
        type Kernel: Kernels;

        /// Selects and schedules a kernel for a request that has been checked.
        fn select(
            &self,
            config: Option<&str>,
            on: &Capabilities,
            tuning: &Tuning,
        ) -> Result<Chosen<Self::Kernel>, Error>;

        /// Checks that a kernel that was planned for another subject solves this one, too.
        fn is_as_planned(&self, planned: &Self, kernel: &Self::Kernel) -> Result<(), Error>;

        /// The launch of a kernel, for tensors that have been checked.
        fn lower(&self, kernel: &Self::Kernel) -> Result<Launch, Refusal>;

        /// The memory that the launch may use beside its tensors.
        fn scratch(&self) -> Scratch {
            Scratch::None
        }
    }

    /// A kernel and those that go with it.
    pub trait Kernels: Copy + Debug + PartialEq {
        /// The places of the kernels that are launched, in [`spec::KERNELS`].
        fn places(&self) -> impl Iterator<Item = usize>;

        /// Bytes of workspace and of counters that launches use.
        fn scratch_bytes(&self) -> [u64; 2] {
            [0; 2]
        }
    }
}
use crate::lower::Refusal;
use sealed::{Kernels, Subject};

/// A kernel, why it was chosen, and what is launched for tensors that it does not take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen<K> {
    kernel: K,
    reason: &'static str,
    fallback: Option<K>,
}

/// How a request is launched, and why. It serves every other request of the same problem, whatever its tensors.
/// It can be compared and copied, not edited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan<S: Subject = AttentionRequest<'static>> {
    subject: S,
    chosen: Chosen<S::Kernel>,
    launch: Launch,
}

/// The memory that a plan's launches use beside their tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchBytes {
    /// Bytes of [workspace](crate::request::Workspace); 0 where they need none.
    pub workspace: u64,
    /// Bytes of [counters](crate::request::Counters) where launches are given some; 0 where they need none.
    pub counters: u64,
}

/// Checks a request and decides how it is launched on a device with these capabilities.
///
/// # Errors
/// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that this crate or
/// this device has not.
pub fn plan<R: Request>(request: &R, on: &Capabilities) -> Result<PlanOf<R>, Error> {
    plan_with(request, on, &Tuning::new())
}

/// The same with what was measured on this device, which comes before the planner's own tables.
///
/// # Errors
/// Those of [`plan`]; [`Error::Invalid`] where the measured choice is not a kernel that solves the problem.
pub fn plan_with<R: Request>(request: &R, on: &Capabilities, tuning: &Tuning) -> Result<PlanOf<R>, Error> {
    on.check()?;
    request.validate()?;
    let subject = request.subject()?;
    let chosen = subject.select(request.config(), on, tuning)?;
    let launch = subject.lower(&chosen.kernel).map_err(|refusal| chosen.refused(refusal))?;
    let plan = Plan { subject, chosen, launch: launch.because(chosen.reason) };
    if subject.scratch() != Scratch::Fastest {
        plan.suffices(&subject)?;
    }
    Ok(plan)
}

impl<K: Kernels> Chosen<K> {
    /// Why the kernel is not launched, where no other takes its place.
    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Tensors(reason) => {
                let symbols = self.kernel.places().map(|place| spec::KERNELS[place].symbol);
                Error::unsupported(symbols.take(1).collect::<String>(), reason)
            }
            Refusal::Request(error) => error,
        }
    }
}

impl<S: Subject> Plan<S> {
    /// The kernel that does the work: its symbol, threads and shared memory. A launch of other tensors may be
    /// [bound](Plan::bind) to another one.
    pub const fn contract(&self) -> &'static Contract {
        self.launch.contract()
    }

    /// Its thread blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.launch.grid()
    }

    /// Why this kernel.
    pub const fn reason(&self) -> &'static str {
        self.launch.reason()
    }

    /// The memory that launches use beside their tensors: what
    /// [`AttentionRequest::scratch`] names.
    pub fn scratch_bytes(&self) -> ScratchBytes {
        let [workspace, counters] = self.chosen.kernel.scratch_bytes();
        ScratchBytes { workspace, counters }
    }

    /// The places of all kernels that launches may take, those for other tensors last.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = usize> {
        let Chosen { kernel, fallback, .. } = &self.chosen;
        let all = self.launch.kernels().chain(kernel.places());
        all.chain(fallback.iter().flat_map(Kernels::places))
    }

    /// What its launch would be.
    pub(crate) const fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The launch for `request`: the plan's problem with its own or other tensors. Checks what the plan has not
    /// been made with.
    ///
    /// Which kernel it is bound to [`Launch::contract`] says, and [`Launch::reason`] why: where Hopper's TMA
    /// does not take other tensors, a portable kernel does, unless the plan or the request names the kernel.
    ///
    /// # Errors
    /// [`Error::Invalid`] where `request` is not the plan's problem, or names too little scratch memory;
    /// [`Error::Unsupported`] where the kernel does not take its tensors and no other takes its place.
    pub fn bind<R: Request + sealed::Request<Subject = S>>(&self, request: &R) -> Result<Launch, Error> {
        let named = request.config();
        if let Some(name) = named.filter(|name| !kernels::is_named(self.contract(), name)) {
            let expected = format_args!("the plan is for {}; make another", self.contract().symbol);
            return Err(Error::invalid("config", name, expected));
        }
        let subject = request.subject()?;
        if subject == self.subject && self.suffices(&subject).is_ok() {
            return Ok(self.launch);
        }
        request.validate()?;
        let Chosen { kernel, reason, fallback } = &self.chosen;
        subject.is_as_planned(&self.subject, kernel)?;
        self.suffices(&subject)?;
        match (subject.lower(kernel), fallback.filter(|_| named.is_none())) {
            (Ok(launch), _) => Ok(launch.because(reason)),
            (Err(Refusal::Tensors(reason)), Some(fallback)) => {
                let launch = subject.lower(&fallback).map_err(|refusal| self.chosen.refused(refusal))?;
                Ok(launch.because(reason))
            }
            (Err(refusal), _) => Err(self.chosen.refused(refusal)),
        }
    }

    /// Checks that workspace and counters are as large as launches need.
    fn suffices(&self, subject: &S) -> Result<(), Error> {
        let (symbol, scratch) = (self.contract().symbol, subject.scratch());
        let check = |what, bytes: u64, needed: u64| {
            let expected = format_args!("{symbol} needs {needed} for this problem on this device");
            if bytes >= needed { Ok(()) } else { Err(Error::invalid(what, bytes, expected)) }
        };
        let [workspace, counters] = self.chosen.kernel.scratch_bytes();
        check("workspace.bytes", scratch.workspace_bytes(), workspace)?;
        scratch.counters().map_or(Ok(()), |given| check("counters.bytes", given.bytes, counters))
    }
}

impl Plan {
    /// What it was made for.
    pub fn problem(&self) -> Problem {
        self.subject.problem()
    }
}

/// Whether a problem can be solved on a device without scratch memory, and by which kernel. Looks at no tensor:
/// one whose strides that kernel's device cannot take may get another, or none where its smaller tiles are 2^31
/// or more.
///
/// # Errors
/// [`Error::Invalid`] where the problem contradicts itself, [`Error::Unsupported`] where no kernel solves it
/// on this device.
pub fn supports(problem: &Problem, on: &Capabilities) -> Result<&'static Contract, Error> {
    explain(problem, on, Scratch::None).map(|(contract, _)| contract)
}

/// The same for launches that may use this scratch memory, and why that kernel: what [`Plan::reason`] says of
/// it.
///
/// # Errors
/// Those of [`supports`].
pub fn explain(
    problem: &Problem,
    on: &Capabilities,
    scratch: Scratch,
) -> Result<(&'static Contract, &'static str), Error> {
    on.check()?;
    validate::problem(problem)?;
    let query = select::Query { problem, tensors: None, on, tuning: &Tuning::new(), scratch };
    let choice = select::attention(&query, None)?;
    schedule::Scheduled::new(problem, choice.kernel, on, |bytes| scratch.allows(bytes))?;
    Ok((&choice.kernel.contract, choice.reason))
}
