//! Problem and capabilities to launches: a pure function that touches no device.
use crate::families::{Kernels, Launches};
use crate::request::{Request, sealed};
use crate::table;
use crate::{
    AlibiSlopes, Alignment, Capabilities, Error, Forward, LseView, Packed, Problem, TensorView, Tuning,
    Workspace, validate,
};
use spec::{Contract, FwdParams, MaskKind, Window};

/// What will be launched, and why. It can be compared and copied, not edited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    problem: Problem,
    tensors: Tensors,
    launches: Launches,
    reason: &'static str,
}

/// The tensors of a [`Forward`]: what may change between launches of one plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tensors {
    /// Q, K, V and O.
    pub views: [TensorView; 4],
    pub alibi: Option<AlibiSlopes>,
    pub lse: Option<LseView>,
    pub packed: Option<Packed>,
    pub workspace: Option<Workspace>,
}

impl Tensors {
    const fn of(f: &Forward<'_>) -> Self {
        let Forward { alibi, lse, packed, workspace, .. } = *f;
        Tensors { views: [f.q, f.k, f.v, f.o], alibi, lse, packed, workspace }
    }
}

/// Whether a problem can be solved on a device, and by which kernel. Looks at no tensor: one whose strides
/// that kernel's device cannot take may get another, or none where its smaller tiles are 2^31 or more.
///
/// # Errors
/// [`Error::Invalid`] where the problem contradicts itself, [`Error::Unsupported`] where no kernel solves it
/// on this device.
pub fn supports(problem: &Problem, capabilities: &Capabilities) -> Result<&'static Contract, Error> {
    supports_with(problem, capabilities, 0)
}

/// The same where a launch is offered `workspace` bytes: with `u64::MAX` the entry is the one that runs
/// fastest with all the room that it wants.
///
/// # Errors
/// Those of [`supports`].
pub fn supports_with(
    problem: &Problem,
    capabilities: &Capabilities,
    workspace: u64,
) -> Result<&'static Contract, Error> {
    explain(problem, capabilities, workspace).map(|(contract, _)| contract)
}

/// The same, and why that kernel: what [`Plan::reason`] says of it.
///
/// # Errors
/// Those of [`supports`].
pub fn explain(
    problem: &Problem,
    capabilities: &Capabilities,
    workspace: u64,
) -> Result<(&'static Contract, &'static str), Error> {
    capabilities.check()?;
    validate::problem(problem)?;
    let choice = table::choose(problem, None, capabilities, None, workspace, &Tuning::new())?;
    Launches::fits(problem, &choice, capabilities)?;
    Ok((&choice.entry.contract, choice.reason))
}

/// Checks `forward` and decides how it is launched on a device with these capabilities.
///
/// # Errors
/// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that this crate or
/// this device has not.
pub fn plan(forward: &Forward<'_>, capabilities: &Capabilities) -> Result<Plan, Error> {
    plan_with(forward, capabilities, &Tuning::new(), 0)
}

/// The same with what was measured on this device, which comes before the planner's own table; and for
/// launches that are offered `workspace` bytes, or those of [`Forward::workspace`] where they are more. With
/// `u64::MAX` the plan is the one that runs fastest, and [`Plan::workspace_bytes`] says what its launches
/// need.
///
/// # Errors
/// Those of [`plan`]; [`Error::Invalid`] where the measured choice is not an entry that solves the problem.
pub fn plan_with(
    forward: &Forward<'_>,
    capabilities: &Capabilities,
    tuning: &Tuning,
    workspace: u64,
) -> Result<Plan, Error> {
    capabilities.check()?;
    let problem = validate::forward(forward)?;
    let offered = forward.workspace.map_or(0, |workspace| workspace.bytes).max(workspace);
    let tensors = Tensors::of(forward);
    let choice = table::choose(&problem, Some(&tensors), capabilities, forward.config, offered, tuning)?;
    let launches = Launches::of(&problem, &choice, capabilities, &tensors)?;
    suffices(offered, &launches)?;
    Ok(Plan { problem, tensors, launches, reason: choice.reason })
}

/// Checks that the workspace is as large as launches need.
fn suffices(bytes: u64, launches: &Launches) -> Result<(), Error> {
    let needed = launches.workspace_bytes();
    if bytes >= needed {
        return Ok(());
    }
    let symbol = launches.contract().symbol;
    let expected = format_args!("{symbol} needs {needed} for this problem on this device");
    Err(Error::invalid("workspace.bytes", bytes, expected))
}

impl Plan {
    /// What it was made for.
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The kernel that computes attention: its symbol, threads and shared memory.
    pub fn contract(&self) -> &'static Contract {
        self.launches.contract()
    }

    /// Its blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.launches.grid()
    }

    /// Why this kernel.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// Bytes that a launch uses of [`Forward::workspace`]; 0 where it needs none.
    pub fn workspace_bytes(&self) -> u64 {
        self.launches.workspace_bytes()
    }

    /// What the kernel that computes attention is told for `forward`, this plan's problem with its own or
    /// other tensors: what [`crate::Prepared::launch`] takes. Launches of a plan need none of it.
    ///
    /// # Errors
    /// Those of [`crate::Attention::launch`] that concern `forward`; [`Error::Unsupported`] where the kernel
    /// is told tensor maps, which a driver encodes.
    pub fn params(&self, forward: &Forward<'_>) -> Result<FwdParams, Error> {
        self.bind(forward)?.forward().copied()
    }

    /// The launches for `forward`: the plan's, or the same with other tensors. Checks what the plan has not
    /// been made with: nothing, a workspace (more may have been offered than there is), or other tensors.
    fn bind(&self, forward: &Forward<'_>) -> Result<Launches, Error> {
        if let Some(name) = forward.config.filter(|name| *name != self.contract().symbol) {
            let expected = format_args!("the plan is for {}; make another", self.contract().symbol);
            return match table::by_name(name, self.problem.mask_kind()) {
                Ok(entry) if entry.contract == *self.contract() => {
                    self.bind(&Forward { config: None, ..*forward })
                }
                _ => Err(Error::invalid("config", name, expected)),
            };
        }
        let (problem, tensors) = (forward.problem(), Tensors::of(forward));
        let room = tensors.workspace.map_or(0, |workspace| workspace.bytes);
        let others = Tensors { workspace: self.tensors.workspace, ..tensors } != self.tensors;
        if others || problem != self.problem {
            validate::forward(forward)?;
            if problem != self.problem && Meaning::of(&problem) != Meaning::of(&self.problem) {
                return Err(validate::another(validate::named(&problem), validate::named(&self.problem)));
            }
        } else if tensors.workspace != self.tensors.workspace {
            validate::workspace(forward)?;
        } else if room >= self.workspace_bytes() {
            return Ok(self.launches);
        }
        suffices(room, &self.launches)?;
        self.launches.bind(&self.problem, &tensors)
    }
}

impl Request for Forward<'_> {
    type Plan = Plan;
}

impl sealed::Request<Plan> for Forward<'_> {
    fn plan(&self, on: &Capabilities, tuning: &Tuning, workspace: u64) -> Result<Plan, Error> {
        plan_with(self, on, tuning, workspace)
    }

    fn bind(&self, plan: &Plan) -> Result<impl Kernels, Error> {
        plan.bind(self)
    }
}

impl sealed::Planned for Plan {
    fn launches(&self) -> &impl Kernels {
        &self.launches
    }
}

/// A problem as kernels see it: however it is spelled, what is computed is the same.
#[derive(PartialEq)]
struct Meaning {
    sizes: Problem,
    kind: MaskKind,
    window: Window,
    scores: (f32, f32),
    alibi: bool,
    /// Rows of packed sequences, each aligned for itself.
    packed: Option<([usize; 2], Alignment)>,
}

impl Meaning {
    fn of(p: &Problem) -> Self {
        let plain = Problem::new(p.dtype, p.batch, p.seqlen_q, p.heads_q, p.head_dim);
        let sizes = Problem { seqlen_k: p.seqlen_k, heads_k: p.heads_k, ..plain };
        let (kind, mut window) = validate::mask(p);
        // Where every key is seen, and none is nearer than another, it does not matter from where.
        if !p.alibi && window.left == Window::UNBOUNDED && window.right == Window::UNBOUNDED {
            window.shift = 0;
        }
        let packed = p.packed.map(|rows| (rows, p.alignment));
        Meaning { sizes, kind, window, scores: validate::base_two(p), alibi: p.alibi, packed }
    }
}
