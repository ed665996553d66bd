//! The passes of a backward request, in launch order. Each pass is one kernel:
//!
//! | kernels | passes |
//! |---|---|
//! | Hopper's | -LSE and delta of each query; dK and dV of each key, with sums of dQ; dQ of each query |
//! | portable | -LSE and delta of each query; dK and dV of each key; dQ of each query |
//! | for gradients of sinks, behind the others | the gradient of each head's sink |
mod refusals;

use crate::launch::Launch;
use crate::lower::{self, GradientMemory, Refusal};
use crate::place::Place;
use crate::request::AttentionBackward;
use crate::schedule::{GradientPass, Padding};
use crate::select::{self, Choice};
use crate::variant::AnyVariant;
use crate::{AttnInfo, Capabilities, Error, Problem, tma};
use refusals::unsolved;
use spec::{
    CONVERT_DQS, DELTAS, DSINKS, DqScratch, GRADIENTS, Integers, Keys, MaskKind, PaddedVector, Pass,
    ProblemKind, TileSums,
};

/// The passes of a backward request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backward {
    passes: [GradientPass; MOST],
    /// The gradients of sinks, which come last.
    dsinks: Option<GradientPass>,
    /// -LSE and delta of each query.
    padding: Padding,
    /// The sums of dQ, and their counters, if the passes leave dQ as sums.
    sums: Option<DqScratch>,
}

/// Number of passes without that of sinks.
const MOST: usize = 3;

/// Alignment of counters, in bytes.
const ALIGNMENT: u64 = 128;

/// The reason for Hopper's kernels, with what an H200 has measured of them.
macro_rules! hopper {
    ($measured:literal) => {
        concat!(
            "warpgroups and TMA",
            $measured,
            ": one pass over the scores adds dQ in the order of the keys: repeated launches give identical ",
            "bits"
        )
    };
}
const D64: &str = hopper!(" (H200: 1.06 to 1.16x cuDNN)");
const D128: &str = hopper!(" (H200: 0.97 to 1.06x cuDNN)");
const GROUPED: &str = hopper!(" (H200: 1.03 to 1.07x cuDNN with grouped heads)");
const OTHER: &str = hopper!("");
const MODIFIED: &str = hopper!(", with windows and modified scores");
const PORTABLE: &str = "two passes, over keys and over queries, add nothing in memory: repeated launches \
                        give identical bits";
const SHORT: &str = "the workspace has no room for sums of dQ, which one pass over the scores needs: two \
                     passes, over keys and over queries";

/// Selects and schedules the passes of a valid request: those of Hopper's kernels, with portable passes for
/// tensors that TMA does not accept, or portable passes.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or there are too many
/// thread blocks.
pub(crate) fn choose(
    r: &AttentionBackward<'_>,
    p: &Problem,
    on: &Capabilities,
) -> Result<Choice<Backward>, Error> {
    select::goes_together(p)?;
    let dsinks = DSINKS.first().filter(|_| r.dsinks.is_some());
    let dsinks = dsinks.map(|e| GradientPass::dsinks(&e.contract));
    let portable = || Ok::<_, Error>(Backward { dsinks, ..portable(p, on)? });
    let Ok(kernel) = gradient(p, Pass::Gradients, on) else {
        return Ok(Choice::new(portable()?, PORTABLE));
    };
    let hopper = Backward { dsinks, ..hopper(p, kernel, on)? };
    let reason = match tma::gradients(r, kernel) {
        Err(reason) => reason,
        Ok(_) if !r.scratch.allows(hopper.scratch_bytes()[0]) => SHORT,
        Ok(_) => {
            let fallback = portable().ok();
            let reason = match (kernel.mask, p.heads_q == p.heads_k, p.head_dim) {
                (MaskKind::Local, ..) => MODIFIED,
                (_, false, 128) => GROUPED,
                (_, true, 64) => D64,
                (_, true, 128) => D128,
                _ => OTHER,
            };
            return Ok(Choice { kernel: hopper, reason, fallback });
        }
    };
    Ok(Choice::new(portable()?, reason))
}

/// Returns the passes of one of Hopper's kernels.
fn hopper(p: &Problem, kernel: &'static AttnInfo, on: &Capabilities) -> Result<Backward, Error> {
    let convert = CONVERT_DQS.iter().find(|e| e.rounds(kernel)).ok_or_else(|| unsolved(p, "dQ"))?;
    let (padding, per_kv) = (Padding::new(p)?, (p.heads_q / p.heads_k) as u32);
    let sums = DqScratch::new(kernel, padding.heads, p.seqlen_q as u32, per_kv);
    let all = GradientPass::all(p, kernel, &sums, on)?;
    let convert = GradientPass::convert(p, &convert.contract, sums.tiles * (kernel.tile_n / 64))?;
    Ok(Backward { passes: [delta(p, &padding)?, all, convert], dsinks: None, padding, sums: Some(sums) })
}

/// Returns the passes of portable kernels.
fn portable(p: &Problem, on: &Capabilities) -> Result<Backward, Error> {
    let padding = Padding::new(p)?;
    let [dkdv, dq] = [gradient(p, Pass::DkDv, on)?, gradient(p, Pass::Dq, on)?];
    let passes = [delta(p, &padding)?, GradientPass::new(p, dkdv)?, GradientPass::new(p, dq)?];
    Ok(Backward { passes, dsinks: None, padding, sums: None })
}

/// Returns the pass that computes -LSE and delta.
fn delta(p: &Problem, padding: &Padding) -> Result<GradientPass, Error> {
    let kernel = DELTAS.iter().find(|e| e.dtype == p.dtype && p.head_dim_v <= e.head_dim as usize);
    GradientPass::delta(p, padding, &kernel.ok_or_else(|| unsolved(p, "dK and dV"))?.contract)
}

/// Returns the kernels of gradients: the variant's kernels, or the table's.
fn kernels(variant: Option<AnyVariant>) -> impl Iterator<Item = &'static AttnInfo> {
    let own = variant.into_iter().flat_map(AnyVariant::kernels).filter(|kernel| kernel.pass != Pass::Forward);
    own.chain(variant.is_none().then_some(GRADIENTS).into_iter().flatten())
}

/// Returns the kernel of a pass that solves the problem with the fewest columns and runs on the device: of
/// several, the first.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there is none.
fn gradient(p: &Problem, pass: Pass, on: &Capabilities) -> Result<&'static AttnInfo, Error> {
    // The LSE has counted sinks. Only their own gradient needs a kernel.
    let kind = ProblemKind { pass, ..p.sinks(false).kind() };
    // One portable kernel takes varlen tensors and batches of equal lengths.
    let keys = if pass == Pass::Gradients { kind.keys } else { Keys::Batched };
    let kind = ProblemKind { keys, ..kind };
    let solving = || kernels(p.variant).filter(|kernel| kernel.solves(&kind));
    let runs = solving().filter(|kernel| on.runs(&kernel.contract).is_ok());
    runs.min_by_key(|kernel| kernel.columns()).ok_or_else(|| {
        let refusal = solving().find_map(|kernel| on.runs(&kernel.contract).err());
        refusal.unwrap_or_else(|| unsolved(p, if pass == Pass::Dq { "dQ" } else { "dK and dV" }))
    })
}

/// Adds the passes' steps to a launch, for valid tensors. `p` is the forward's problem.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if a kernel does not accept the tensors, or the errors of a variant's
/// kernels.
pub(crate) fn lower(
    r: &AttentionBackward<'_>,
    p: &Problem,
    passes: &Backward,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    let memory = passes.memory(r.scratch.address());
    passes.all().try_for_each(|pass| lower::gradient(r, p, &pass, &memory, launch))?;
    Ok(lower::fits(launch, &r.forward, p)?)
}

impl Backward {
    /// Returns all passes in launch order.
    fn all(&self) -> impl Iterator<Item = GradientPass> + use<> {
        self.passes.into_iter().chain(self.dsinks)
    }

    /// Returns the places of the launch's kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        self.all().map(|pass| pass.place)
    }

    /// Returns the parts of a workspace at this address: -LSE, delta, the counters, the sums.
    fn memory(&self, workspace: u64) -> GradientMemory {
        let Backward { padding: Padding { rows, heads, sequences: padded }, sums, .. } = *self;
        let delta = workspace.saturating_add(self.vector_bytes());
        let [minus_lse, delta] = [workspace, delta].map(|base| PaddedVector { base, rows, heads });
        let end = delta.base.saturating_add(self.vector_bytes());
        let (cleared, sums) = match &sums {
            None => ([0; 2], TileSums { base: 0, counters: 0, tiles: 0, heads }),
            Some(sums) => {
                let counters = end.saturating_add(ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
                let base = counters.saturating_add(counter_bytes(sums));
                ([counters, sums.counters], TileSums { base, counters, tiles: sums.tiles, heads })
            }
        };
        // A launch has fewer counters than rows of delta.
        let cleared = Integers { base: cleared[0], count: cleared[1] as u32, reserved: 0 };
        GradientMemory { minus_lse, delta, cleared, sums, padded }
    }

    /// Returns the bytes of -LSE, and of delta.
    const fn vector_bytes(&self) -> u64 {
        // A valid problem has less than 2^31 rows of blocks.
        self.padding.rows as u64 * self.padding.heads as u64 * 4
    }

    /// Returns the bytes of workspace and of counters that launches use.
    pub const fn scratch_bytes(&self) -> [u64; 2] {
        let sums = match &self.sums {
            // A workspace begins at a multiple of 16, and the vectors are multiples of 128 bytes.
            Some(sums) => ALIGNMENT - 16 + counter_bytes(sums) + sums.sum_bytes,
            None => 0,
        };
        [2 * self.vector_bytes() + sums, 0]
    }
}

/// Returns the bytes of the counters, with padding before the sums.
const fn counter_bytes(sums: &DqScratch) -> u64 {
    (sums.counters * 4).next_multiple_of(ALIGNMENT)
}
