//! The passes of a backward request, in launch order. Each pass is one kernel:
//!
//! | kernels | passes |
//! |---|---|
//! | portable | -LSE and delta of each query; dK and dV of each key; dQ of each query |
use crate::launch::Launch;
use crate::lower;
use crate::place::Place;
use crate::request::AttentionBackward;
use crate::schedule::{GradientPass, padded_rows};
use crate::select::Choice;
use crate::{AttnInfo, Capabilities, Error, Problem};
use spec::{DELTAS, GRADIENTS, PaddedVector, Pass, ProblemKind};

/// The passes of a backward request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backward {
    passes: [Option<GradientPass>; MOST],
    /// -LSE and delta of each query: each vector's rows per head, and heads of all batches.
    rows: u32,
    heads: u32,
}

/// Maximum number of passes.
const MOST: usize = 3;

const PORTABLE: &str = "two passes, over keys and over queries, add nothing in memory: repeated launches \
                        give identical bits";

/// Selects and schedules the passes of a valid problem.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or there are too many
/// thread blocks.
pub(crate) fn choose(p: &Problem, on: &Capabilities) -> Result<Choice<Backward>, Error> {
    let delta = DELTAS.iter().find(|e| e.dtype == p.dtype && p.head_dim_v <= e.head_dim as usize);
    let delta = delta.ok_or_else(|| unsolved(p))?;
    let [dkdv, dq] = [gradient(p, Pass::DkDv, on)?, gradient(p, Pass::Dq, on)?];
    let passes =
        [GradientPass::delta(p, &delta.contract)?, GradientPass::new(p, dkdv)?, GradientPass::new(p, dq)?];
    let (rows, heads) = (padded_rows(p), (p.batch * p.heads_q) as u32);
    let kernel = Backward { passes: passes.map(Some), rows, heads };
    Ok(Choice { kernel, reason: PORTABLE, fallback: None })
}

/// Returns the first kernel of a pass that solves the problem and runs on the device.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there is none.
fn gradient(p: &Problem, pass: Pass, on: &Capabilities) -> Result<&'static AttnInfo, Error> {
    let kind = ProblemKind { pass, ..p.kind() };
    let mut refusal = None;
    for kernel in GRADIENTS.iter().filter(|kernel| kernel.solves(&kind)) {
        match on.runs(&kernel.contract) {
            Ok(()) => return Ok(kernel),
            Err(error) => {
                refusal.get_or_insert(error);
            }
        }
    }
    Err(refusal.unwrap_or_else(|| unsolved(p)))
}

fn unsolved(p: &Problem) -> Error {
    Error::unsupported(format_args!("backward of {p}"), "no kernel computes it")
}

/// Adds the passes' steps to a launch, for valid tensors.
pub(crate) fn lower(r: &AttentionBackward<'_>, passes: &Backward, launch: &mut Launch) {
    let [minus_lse, delta] = passes.vectors(r.scratch.address());
    passes.passes.iter().flatten().for_each(|pass| lower::gradient(r, pass, [minus_lse, delta], launch));
}

impl Backward {
    /// Returns the places of the launch's kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        self.passes.into_iter().flatten().map(|pass| pass.place)
    }

    /// Returns -LSE and delta in a workspace at this address.
    fn vectors(&self, workspace: u64) -> [PaddedVector; 2] {
        let Backward { rows, heads, .. } = *self;
        let bases = [workspace, workspace.saturating_add(self.vector_bytes())];
        bases.map(|base| PaddedVector { base, rows, heads })
    }

    /// Returns the bytes of -LSE, and of delta.
    const fn vector_bytes(&self) -> u64 {
        // A valid problem has less than 2^31 rows of blocks.
        self.rows as u64 * self.heads as u64 * 4
    }

    /// Returns the bytes of workspace and of counters that launches use.
    pub const fn scratch_bytes(&self) -> [u64; 2] {
        [2 * self.vector_bytes(), 0]
    }
}
