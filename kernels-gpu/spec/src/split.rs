//! Split-KV kernels: several thread blocks share a work tile's keys.
use crate::forward::made_of;
use crate::variant::no_variant;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` with split-KV (FlashDecoding, Dao et al. 2023), for few queries and many keys. The keys of each
/// work tile are divided into splits. A block takes one split; a persistent block takes one split after the
/// other.
pub struct Split<K>(PhantomData<K>);

/// Parameters of a [`Split`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitParams<F = FwdParams> {
    /// The forward parameters. [`Combine`] writes `o` and `lse`. A persistent kernel uses only the order in
    /// its scheduler.
    pub forward: F,
    /// Partial results of the splits: normalised O, and LSE.
    pub partials: Partials,
}
contract::no_padding! {
    SplitParams<FwdParams> { forward, partials }
    SplitParams<HopperParams> { forward, partials }
}

no_variant!(SplitParams<F>, F);

impl<F> AsRef<F> for SplitParams<F> {
    #[inline(always)]
    fn as_ref(&self) -> &F {
        &self.forward
    }
}

made_of!(Split<K>: SplitParams<K::Params>, splits::<K>, { splits: true });

/// Number of blocks of the launch: one per split, or the blocks that the GPU runs at once.
fn splits<K: Forward>(p: &SplitParams<K::Params>) -> u32 {
    let (order, slices) = (p.forward.order(), p.partials.slices.get());
    let blocks = order.tiles * slices;
    if K::INFO.scheduler == TileScheduler::Persistent { blocks.min(order.resident) } else { blocks }
}
