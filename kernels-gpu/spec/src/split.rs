//! Kernels whose thread blocks share a tile's keys (split-KV).
use crate::forward::made_of;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` with several splits of the keys of each tile of queries (FlashDecoding, Dao et al. 2023): for
/// few queries and many keys. A block does one split; where `K` is persistent, split after split.
pub struct Split<K>(PhantomData<K>);

/// What a [`Split`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitParams<F = FwdParams> {
    /// The forward. Its `o` and `lse` are [`Combine`]'s to write; of a persistent one's rounds only the order
    /// counts.
    pub forward: F,
    /// Where each split of the keys leaves its O, normalised, and its log-sum-exp.
    pub partials: Partials,
}

impl<F> AsRef<F> for SplitParams<F> {
    #[inline(always)]
    fn as_ref(&self) -> &F {
        &self.forward
    }
}

made_of!(Split<K>: SplitParams<K::Params>, splits::<K>, { splits: true });

/// Blocks of a launch: as many as there are splits, or as the card holds at once.
fn splits<K: Forward>(p: &SplitParams<K::Params>) -> u32 {
    let (order, slices) = (p.forward.order(), p.partials.slices.get());
    let blocks = order.tiles * slices;
    if K::INFO.scheduler == TileScheduler::Persistent { blocks.min(order.resident) } else { blocks }
}
