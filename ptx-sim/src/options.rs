//! Options of the simulation and of its checks.

use crate::report::Kind;

/// The time at which an asynchronous copy lands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Completion {
    /// Copies land immediately.
    Eager,
    /// Copies land as late as the waits allow.
    #[default]
    Late,
    /// A random time for each copy, which the seed determines.
    Random,
}

/// The tensor cores whose arithmetic the simulator reproduces bit by bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MmaArch {
    /// Ampere and Ada: two steps of eight products, 24 fraction bits.
    Ampere,
    /// Hopper: one step of sixteen products, 25 fraction bits.
    Hopper,
}

/// The arithmetic of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MmaMode {
    /// A chain of f32 additions, each rounded to nearest.
    #[default]
    Fast,
    /// The rounding of the hardware.
    Exact(MmaArch),
    /// The sum is computed in f64, and rounded once.
    F64,
}

/// Settings of a [`crate::Gpu`]. Every check is on by default.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Options {
    /// Reports accesses out of bounds, misaligned accesses, and accesses to freed memory or to the wrong
    /// state space.
    pub memcheck: bool,
    /// Reports races between warps and between lanes, in shared and in device memory.
    pub racecheck: bool,
    /// Reports reads of uninitialised registers and memory.
    pub initcheck: bool,
    /// Reports divergent barriers and warp-wide instructions, missing participants, and wrong counts.
    pub synccheck: bool,
    /// The seed of the schedule. 0 begins blocks in ascending order, and runs each warp until it blocks.
    /// Other values shuffle the blocks that wait for each other, warps, and time slices.
    pub seed: u64,
    /// The time at which asynchronous copies land.
    pub completion: Completion,
    /// Arithmetic of matrix products.
    pub mma: MmaMode,
    /// Maximum number of reports per launch. A block ends when it has made this number of reports. If blocks
    /// run one after the other, the launch ends too.
    pub max_reports: usize,
    /// Maximum number of warp instructions per launch.
    pub budget: u64,
    /// Maximum number of warp instructions during which no memory changes, no barrier completes and no warp
    /// exits. A launch that continues beyond this number counts as an endless loop.
    pub patience: u64,
    /// Whether independent blocks run on all cores.
    pub parallel: bool,
    /// Whether to record the coverage of each instruction: [`crate::Outcome::coverage`].
    pub coverage: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memcheck: true,
            racecheck: true,
            initcheck: true,
            synccheck: true,
            seed: 0,
            completion: Completion::default(),
            mma: MmaMode::default(),
            max_reports: 100,
            budget: 20_000_000_000,
            patience: 20_000_000,
            parallel: true,
            coverage: false,
        }
    }
}

impl Options {
    pub(crate) fn enabled(&self, kind: Kind) -> bool {
        match kind {
            Kind::OutOfBounds | Kind::Misaligned | Kind::UseAfterFree | Kind::WrongSpace | Kind::ReadOnly => {
                self.memcheck
            }
            Kind::ReadAfterWrite | Kind::WriteAfterRead | Kind::WriteAfterWrite => self.racecheck,
            Kind::WarpRace | Kind::PendingCopy | Kind::GlobalRace => self.racecheck,
            Kind::UninitialisedRegister | Kind::UninitialisedShared => self.initcheck,
            Kind::UninitialisedGlobal | Kind::UninitialisedLocal => self.initcheck,
            Kind::DivergentBarrier | Kind::DivergentSync | Kind::MissingParticipants => self.synccheck,
            Kind::BarrierCount | Kind::Mbarrier | Kind::UnwaitedCopies => self.synccheck,
            Kind::PendingProduct | Kind::MissingProxyFence | Kind::DependentLaunch => self.racecheck,
            Kind::Wgmma | Kind::RegisterBudget => self.synccheck,
            Kind::BulkCopy => self.memcheck,
            Kind::Deadlock | Kind::Runaway | Kind::Trap => true,
        }
    }
}
