//! Scheduling: the distribution of an attention's work over thread blocks. It depends on problem, kernel and
//! device, not on tensors.
mod decode;
mod split;
mod tiles;

pub(crate) use decode::{Decode, at_once, row_blocks};
pub(crate) use split::Split;
pub(crate) use tiles::Tiles;

use crate::{AttnInfo, Capabilities, Contract, Error, KERNELS, Problem};
use spec::{Keys, MERGES, MergeInfo, Schedule as Order};

/// A kernel and its schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheduled {
    pub kernel: &'static AttnInfo,
    /// The kernel's index in [`KERNELS`].
    pub place: usize,
    pub schedule: Schedule,
    /// Index of the merge kernel that adds sinks to the output, if the kernel itself does not.
    pub merge: Option<usize>,
    /// Rows of Q of all heads.
    rows: u64,
}

/// A schedule: the distribution of work over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// By work tiles.
    Tiles(Tiles),
    /// Splits of the sequences' keys.
    Decode(Decode),
}

impl Scheduled {
    /// The schedule of a kernel that solves a problem, for launches with at most `allows` bytes of workspace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there are more work items than a kernel can count.
    pub fn new(
        p: &Problem,
        kernel: &'static AttnInfo,
        on: &Capabilities,
        allows: impl Fn(u64) -> bool,
    ) -> Result<Self, Error> {
        let schedule = match (kernel.schedule, kernel.keys) {
            (Order::Transposed, _) => Schedule::Decode(Decode::new(p, kernel, on, allows)?),
            (_, Keys::Cache(_) | Keys::Latent) => Schedule::Tiles(Tiles::on_cache(p, kernel, on)?),
            (_, Keys::Batched | Keys::Varlen) => Schedule::Tiles(Tiles::on_tensors(p, kernel, on)?),
        };
        let adds_sinks = kernel.scores.sink || matches!(schedule, Schedule::Decode(_));
        let merges = |merge: &&MergeInfo| [merge.states, merge.output] == [p.dtype; 2];
        let merge = MERGES.iter().find(merges).filter(|_| p.sinks && !adds_sinks);
        let merge = merge.map(|merge| place(&merge.contract));
        let [[batches, rows, heads, _], _] = p.shapes();
        let rows = (batches as u64).saturating_mul(rows as u64).saturating_mul(heads as u64);
        Ok(Scheduled { kernel, place: place(&kernel.contract), schedule, merge, rows })
    }

    /// Bytes of workspace for the LSE that the merge kernel reads; 0 without one.
    pub const fn lse_bytes(&self) -> u64 {
        if self.merge.is_some() { self.rows * 4 } else { 0 }
    }

    /// Bytes of workspace and of counters that the launches use.
    pub const fn scratch_bytes(&self) -> [u64; 2] {
        match &self.schedule {
            Schedule::Tiles(Tiles { split: Some(split), .. }) => [split.workspace(), 0],
            Schedule::Tiles(_) => [self.lse_bytes(), 0],
            Schedule::Decode(decode) => [decode.workspace, decode.counters],
        }
    }

    /// Indices of the launch's kernels; the combine or merge kernel follows the main kernel.
    pub fn kernels(&self) -> impl Iterator<Item = usize> {
        let combine = match &self.schedule {
            Schedule::Tiles(tiles) => tiles.split.map(|split| split.combine()),
            Schedule::Decode(decode) => (decode.workspace > 0).then_some(decode.combine),
        };
        std::iter::once(self.place).chain(combine).chain(self.merge)
    }
}

/// Index in [`KERNELS`] of a kernel of the table.
pub(crate) fn place(contract: &Contract) -> usize {
    KERNELS.iter().position(|kernel| kernel.symbol == contract.symbol).unwrap_or_default()
}
