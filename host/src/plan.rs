//! Plans launches. Planning consists of pure functions from requests to launches. Planning touches no device.
//!
//! Planning validates every request, selects a kernel, schedules its work, and lowers both to a [`Launch`]. A
//! [`Plan`] stores everything that does not depend on tensors. [`Plan::bind`] lowers again, for other tensors
//! of the same problem.
mod any;
mod attention;
mod backward;
mod moves;
mod others;

pub use crate::launch::Launch;
pub use crate::problem::{CacheShape, MAX_ROWS, Problem};
pub use any::{AnyPlan, AnyRequest, OwnedMerge};

use crate::layout::Layout;
use crate::request::{AttentionRequest, Region, Scratch};
use crate::select::{self, Choice};
use crate::{Capabilities, Contract, Error, Tuning, kernels, passes, validate};

/// A request for planning and launching: [`AttentionRequest`],
/// [`AttentionBackward`](crate::request::AttentionBackward), [`Append`](crate::request::Append),
/// [`Merge`](crate::request::Merge) or [`Sum`](crate::request::Sum).
pub trait Request: sealed::Request {}
impl<R: sealed::Request> Request for R {}

/// The plan of a request.
pub type PlanOf<R> = Plan<<R as sealed::Request>::Subject>;

/// Methods of requests that only this crate calls.
pub(crate) mod sealed {
    use super::{Capabilities, Choice, Error, Launch, Scratch, ScratchBytes, Tuning};
    use crate::lower::Refusal;
    use crate::place::Place;
    use crate::request::{PARTS, Parts, Places};
    use std::fmt::Debug;

    pub trait Request {
        type Subject: Subject;

        /// Returns whether the request is this subject, perhaps with the name of a kernel.
        fn is(&self, subject: &Self::Subject) -> bool;

        /// Validates the request, and returns the part on which launches depend. `planned` is the part of a
        /// valid request. This function does not check again a problem that equals `planned`'s.
        fn valid(&self, planned: Option<&Self::Subject>) -> Result<Self::Subject, Error>;

        /// Returns whether the request would be this subject at the addresses that `place` gives to a copy of
        /// the request.
        fn is_moved(&self, subject: &Self::Subject, place: impl FnOnce(Places<'_>)) -> bool;

        /// Returns an address in each buffer that the launch writes.
        #[cfg(feature = "cudarc")]
        fn written(&self) -> Vec<u64>;

        /// Returns the kernel that the caller names, if any.
        fn config(&self) -> Option<&str> {
            None
        }
    }

    /// The part of a valid request that a plan stores. This part borrows nothing, and does not contain the
    /// name of a kernel.
    pub trait Subject: Copy + Debug + PartialEq {
        /// A kernel with its schedule. Sizes and device determine both.
        type Kernel: Kernels;

        /// Selects and schedules a kernel.
        fn select(
            &self,
            config: Option<&str>,
            on: &Capabilities,
            tuning: &Tuning,
        ) -> Result<Choice<Self::Kernel>, Error>;

        /// Checks that a kernel that was planned for another subject also solves this one.
        fn is_as_planned(&self, planned: &Self, kernel: &Self::Kernel) -> Result<(), Error>;

        /// Adds the steps of a kernel to a launch.
        fn lower(&self, kernel: &Self::Kernel, launch: &mut Launch) -> Result<(), Refusal>;

        /// Returns the scratch memory that the launch may use.
        fn scratch(&self) -> Scratch {
            Scratch::None
        }

        /// Returns the subject with scratch memory of this size, if the caller has yet to allocate it.
        fn allocated(self, _: ScratchBytes) -> Self {
            self
        }

        /// Returns the number of bytes of workspace and of counters that launches of this kernel use.
        fn scratch_bytes(&self, kernel: &Self::Kernel) -> [u64; 2] {
            kernel.scratch_bytes()
        }

        /// Returns the parts of a valid subject, if launches differ only in addresses if it does.
        fn parts(&self) -> Option<Parts> {
            None
        }

        /// Returns the addresses of the parts, in the order of [`Subject::parts`].
        fn places(&mut self) -> Places<'_> {
            [const { None }; PARTS]
        }
    }

    /// A kernel and its companions, such as the combine kernel.
    pub trait Kernels: Copy + Debug + PartialEq {
        /// Returns the launched kernels.
        fn places(&self) -> impl Iterator<Item = Place>;

        /// Returns the number of bytes of workspace and of counters that launches use.
        fn scratch_bytes(&self) -> [u64; 2] {
            [0; 2]
        }
    }
}
use crate::lower::Refusal;
use crate::place::Place;
use attention::EMPTY;
pub use attention::Stated;
use moves::Moves;
use sealed::{Kernels, Subject};

/// A plan: how a request is launched, and why. A plan serves every request of the same problem, with any
/// tensors. A plan can be compared and copied, not edited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan<S: Subject = Stated<AttentionRequest<'static>>> {
    subject: S,
    chosen: Choice<S::Kernel>,
    launch: Launch,
    moves: Option<Moves<S>>,
}

/// The scratch memory that a plan's launches use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchBytes {
    /// Bytes of workspace; 0 if launches need none.
    pub workspace: u64,
    /// Bytes of counters if the caller provides them; 0 if launches need none.
    pub counters: u64,
}

impl ScratchBytes {
    /// Returns scratch memory of this size at device addresses, for [`AttentionRequest::scratch`]. The
    /// workspace begins at a multiple of 16. The counters begin at a multiple of 4, and are zero before the
    /// first launch. If launches need no memory, the address does not matter.
    pub const fn at(self, workspace: u64, counters: Option<u64>) -> Scratch {
        if self.workspace == 0 {
            return Scratch::None;
        }
        let counters = match counters {
            Some(address) if self.counters > 0 => Some(Region { address, bytes: self.counters }),
            _ => None,
        };
        Scratch::Memory { workspace: Region { address: workspace, bytes: self.workspace }, counters }
    }
}

/// Validates a request and plans its launch on a device with these capabilities.
///
/// # Errors
/// Returns [`Error::Invalid`], which names the invalid field, or [`Error::Unsupported`], which names the
/// feature that this crate or this device lacks.
pub fn plan<R: Request>(request: &R, on: &Capabilities) -> Result<PlanOf<R>, Error> {
    plan_with(request, on, &Tuning::new())
}

/// Like [`plan`], but with measured choices for this device, which override the selection tables.
///
/// # Errors
/// Returns the errors of [`plan`], or [`Error::Invalid`] if the measured choice does not solve the problem.
pub fn plan_with<R: Request>(request: &R, on: &Capabilities, tuning: &Tuning) -> Result<PlanOf<R>, Error> {
    on.check()?;
    let subject = request.valid(None)?;
    let chosen = subject.select(request.config(), on, tuning)?;
    let mut launch = Launch::new(chosen.reason);
    subject.lower(&chosen.kernel, &mut launch).map_err(|refusal| refused(&chosen, refusal))?;
    let mut plan = Plan { subject, chosen, launch, moves: None };
    if subject.scratch() != Scratch::Fastest {
        plan.suffices(&subject)?;
    }
    plan.moves = Moves::new(subject.allocated(plan.scratch_bytes()), &chosen);
    Ok(plan)
}

/// Returns the error of a kernel that cannot be launched and has no fallback.
fn refused<K: Kernels>(chosen: &Choice<K>, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Tensors(reason) => {
            let symbols = chosen.kernel.places().map(|place| place.contract().symbol);
            Error::unsupported(symbols.take(1).collect::<String>(), reason)
        }
        Refusal::Request(error) => error,
    }
}

impl<S: Subject> Plan<S> {
    /// Returns the contract of the main kernel: its symbol, threads and shared memory. [`Plan::bind`] may
    /// bind other tensors to another kernel.
    pub const fn contract(&self) -> &'static Contract {
        self.launch.contract()
    }

    /// Returns the grid in thread blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.launch.grid()
    }

    /// Returns the reason why this kernel was selected.
    pub const fn reason(&self) -> &'static str {
        self.launch.reason()
    }

    /// Returns the scratch memory that launches use, for [`AttentionRequest::scratch`].
    pub fn scratch_bytes(&self) -> ScratchBytes {
        let [workspace, counters] = self.subject.scratch_bytes(&self.chosen.kernel);
        ScratchBytes { workspace, counters }
    }

    /// Returns the kernels in launch order.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Contract> {
        self.launch.kernels()
    }

    /// Returns the places of all kernels that launches may use; fallbacks come last.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let Choice { kernel, fallback, .. } = &self.chosen;
        let all = self.launch.places().chain(kernel.places());
        all.chain(fallback.iter().flat_map(Kernels::places))
    }

    /// Returns the launch of the plan's own tensors.
    pub(crate) const fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Binds the plan to `request`, which must have the plan's problem and may have other tensors. Validates
    /// all parts of `request` that differ from the planned request.
    ///
    /// [`Launch::contract`] describes the bound kernel, and [`Launch::reason`] gives the reason for this
    /// kernel. If TMA does not accept the tensors, the plan binds a portable kernel, unless the plan or the
    /// request names a kernel.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if `request` is not the plan's problem or has too little scratch memory, or
    /// [`Error::Unsupported`] if the kernel does not accept the tensors and there is no fallback.
    pub fn bind<R: Request + sealed::Request<Subject = S>>(&self, request: &R) -> Result<Launch, Error> {
        let mut others = None;
        self.bound(request, &mut others).copied()
    }

    /// Returns the plan's own launch or, in `others`, that of other tensors. A launch has kilobytes, so it is
    /// written where it stays.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind`].
    pub(crate) fn bound<'a, R: Request + sealed::Request<Subject = S>>(
        &'a self,
        request: &R,
        others: &'a mut Option<Launch>,
    ) -> Result<&'a Launch, Error> {
        if let Some(own) = self.own_launch(request)? {
            return Ok(own);
        }
        if let Some(moves) = &self.moves
            && let Some(distances) = moves.distances(request)
        {
            let launch = moves.launch(&distances, others);
            debug_assert_eq!(self.lower_others(request).as_ref(), Ok(launch), "not validation's launch");
            return Ok(launch);
        }
        Ok(others.insert(self.lower_others(request)?))
    }

    /// Returns the plan's own launch, if the request has the plan's own tensors.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the request names another kernel.
    fn own_launch<R: Request + sealed::Request<Subject = S>>(
        &self,
        request: &R,
    ) -> Result<Option<&Launch>, Error> {
        let named = request.config();
        if let Some(name) = named.filter(|name| !kernels::is_named(self.contract(), name)) {
            let expected = format_args!("the plan is for {}; make another plan", self.contract().symbol);
            return Err(Error::invalid("config", name, expected));
        }
        let is_own = request.is(&self.subject) && self.suffices(&self.subject).is_ok();
        Ok(is_own.then_some(&self.launch))
    }

    /// Validates a request that names no other kernel, and lowers it.
    fn lower_others<R: Request + sealed::Request<Subject = S>>(&self, request: &R) -> Result<Launch, Error> {
        let subject = request.valid(Some(&self.subject))?;
        let Choice { kernel, reason, fallback } = &self.chosen;
        subject.is_as_planned(&self.subject, kernel)?;
        self.suffices(&subject)?;
        let mut launch = Launch::new(reason);
        let refused = |refusal| refused(&self.chosen, refusal);
        match (subject.lower(kernel, &mut launch), fallback.as_ref().filter(|_| request.config().is_none())) {
            (Ok(()), _) => {}
            (Err(Refusal::Tensors(reason)), Some(fallback)) => {
                subject.is_as_planned(&self.subject, fallback)?;
                launch = Launch::new(reason);
                subject.lower(fallback, &mut launch).map_err(refused)?;
            }
            (Err(refusal), _) => return Err(refused(refusal)),
        }
        Ok(launch)
    }

    fn suffices(&self, subject: &S) -> Result<(), Error> {
        suffices(self.contract(), subject.scratch(), subject.scratch_bytes(&self.chosen.kernel))
    }
}

/// Checks that workspace and counters are large enough for a kernel.
fn suffices(kernel: &Contract, scratch: Scratch, [workspace, counters]: [u64; 2]) -> Result<(), Error> {
    let check = |what, bytes: u64, needed: u64| {
        let expected = format_args!(
            "{} needs {needed} for this problem on this device; plan with `Scratch::Fastest`, and allocate \
             the bytes that `scratch_bytes` of that plan returns",
            kernel.symbol
        );
        if bytes >= needed { Ok(()) } else { Err(Error::invalid(what, bytes, expected)) }
    };
    check("workspace.bytes", scratch.workspace_bytes(), workspace)?;
    scratch.counters().map_or(Ok(()), |given| check("counters.bytes", given.bytes, counters))
}

impl Plan {
    /// Returns the plan's problem.
    pub const fn problem(&self) -> Problem {
        self.subject.problem
    }
}

/// Returns a kernel that solves a problem on a device without scratch memory, if there is one. Tensors are
/// not considered. If TMA does not accept a tensor's strides, planning may select another kernel. Planning
/// fails if that kernel would have 2^31 or more of its smaller tiles.
///
/// # Errors
/// Returns [`Error::Invalid`] if the problem contradicts itself, or [`Error::Unsupported`] if no kernel
/// solves it on this device.
pub fn supports(problem: &Problem, on: &Capabilities) -> Result<&'static Contract, Error> {
    explain(problem, on, Scratch::None).map(|(contract, _)| contract)
}

/// Like [`supports`], but with this scratch memory. Also returns the reason, as in [`Plan::reason`].
///
/// # Errors
/// Returns the errors of [`supports`].
pub fn explain(
    problem: &Problem,
    on: &Capabilities,
    scratch: Scratch,
) -> Result<(&'static Contract, &'static str), Error> {
    on.check()?;
    let is_empty = problem.is_empty();
    let (problem, scratch) = if is_empty { (problem.filled(), Scratch::None) } else { (*problem, scratch) };
    validate::problem(&problem)?;
    let tuning = &Tuning::new();
    let query = select::Query::new(&problem, Layout::ANY, on, tuning, scratch);
    let Choice { kernel, reason, .. } = passes::whole(&query, None)?;
    let contract = kernel.contract();
    // The launch of an empty problem uses no scratch memory.
    if !is_empty && scratch != Scratch::Fastest {
        suffices(contract, scratch, kernel.scratch_bytes())?;
    }
    Ok((contract, if is_empty { EMPTY } else { reason }))
}
