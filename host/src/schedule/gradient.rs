//! Schedules the kernels of a backward pass.
use super::tiles::resident;
use crate::place::Place;
use crate::{Capabilities, Contract, Error, Problem};
use spec::{AttnInfo, DELTA_ROWS, DqScratch, FastDiv, PaddedVector, Pass, TileOrder};

/// A kernel of a backward pass, and the distribution of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientPass {
    /// The place of the kernel.
    pub place: Place,
    /// The kernel, if its mask and scores may have parameters.
    pub kernel: Option<&'static AttnInfo>,
    pub work: GradientWork,
}

/// The results of a kernel of a backward pass, and the distribution of its work over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GradientWork {
    /// -LSE and delta: this number of blocks per head.
    Delta(FastDiv),
    /// dK and dV: work tiles of keys.
    DkDv(TileOrder),
    /// dQ: work tiles of queries.
    Dq(TileOrder),
    /// All gradients, dQ as sums: work tiles of keys for this kernel.
    All(&'static AttnInfo, TileOrder),
    /// dQ of its sums: this number of blocks of 64 queries per head.
    Convert(FastDiv),
}

impl GradientPass {
    /// Returns the schedule of the kernel that computes -LSE and delta.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many thread blocks.
    pub fn delta(p: &Problem, kernel: &Contract) -> Result<Self, Error> {
        let per_head = padded_rows(p) / DELTA_ROWS;
        let all = (p.batch as u64 * p.heads_q as u64).saturating_mul(per_head.into());
        let blocks = FastDiv::new(per_head).filter(|_| all < 1 << 31);
        let work = GradientWork::Delta(blocks.ok_or_else(|| too_many(p, per_head))?);
        Ok(GradientPass { place: Place::of(kernel), kernel: None, work })
    }

    /// Returns the schedule of a kernel of gradients. Blocks run head by head: each head's tensors are then
    /// in the L2 cache.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many thread blocks.
    pub fn new(p: &Problem, kernel: &'static AttnInfo) -> Result<Self, Error> {
        let is_of_keys = kernel.pass == Pass::DkDv;
        let (length, heads) = if is_of_keys { (p.seqlen_k, p.heads_k) } else { (p.seqlen_q, p.heads_q) };
        let blocks = length.div_ceil(kernel.tile_m as usize) as u32;
        let [batch, heads, heads_k] = [p.batch, heads, p.heads_k].map(|count| count as u32);
        let order = TileOrder::new(blocks, batch, heads, heads_k, 1).ok_or_else(|| too_many(p, blocks))?;
        let work = if is_of_keys { GradientWork::DkDv(order) } else { GradientWork::Dq(order) };
        Ok(GradientPass { place: Place::of_either(kernel, p.variant), kernel: Some(kernel), work })
    }

    /// Returns the schedule of one of Hopper's kernels, which leaves sums of dQ in `sums`. Heads run in
    /// groups of equal size.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many work tiles.
    pub fn all(
        p: &Problem,
        kernel: &'static AttnInfo,
        sums: &DqScratch,
        on: &Capabilities,
    ) -> Result<Self, Error> {
        let blocks = p.seqlen_k.div_ceil(kernel.tile_m as usize) as u32;
        let [batch, heads] = [p.batch, p.heads_k].map(|count| count as u32);
        let all = batch.saturating_mul(heads);
        let group = (1..=sums.group.min(all)).rev().find(|group| all.is_multiple_of(*group)).unwrap_or(1);
        let order = TileOrder::new(blocks, batch, heads, heads, group).ok_or_else(|| too_many(p, blocks))?;
        let work = GradientWork::All(kernel, order.resident(resident(&kernel.contract, on)));
        Ok(GradientPass { place: Place::of(&kernel.contract), kernel: None, work })
    }

    /// Returns the schedule of the kernel that rounds sums of dQ, in this number of blocks per head.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are no queries.
    pub fn convert(p: &Problem, kernel: &Contract, blocks: u32) -> Result<Self, Error> {
        // There are fewer of these blocks than of delta's.
        let work = GradientWork::Convert(FastDiv::new(blocks).ok_or_else(|| too_many(p, blocks))?);
        Ok(GradientPass { place: Place::of(kernel), kernel: None, work })
    }
}

/// Returns the number of rows per head of -LSE and of delta.
pub fn padded_rows(p: &Problem) -> u32 {
    // A length is at most 2^30.
    (p.seqlen_q as u32).next_multiple_of(PaddedVector::ROWS)
}

fn too_many(p: &Problem, blocks: u32) -> Error {
    let feature = format_args!("{blocks} blocks for each of {} x {} heads", p.batch, p.heads_q);
    Error::unsupported(feature, "a launch may have less than 2^31 thread blocks; split the batch")
}
