//! Forward kernels whose blocks share a tile's keys. Their lines stand in the forward family's table.
use crate::forward::forward_as;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` with several blocks for each tile of queries, each with its slice of the keys (FlashDecoding,
/// Dao et al. 2023): for few queries and many keys.
pub struct Split<K>(PhantomData<K>);

/// What a [`Split`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitParams {
    /// The forward. Its `o` and `lse` are [`Combine`]'s to write.
    pub forward: FwdParams,
    /// Where each slice of the keys leaves its O, normalised, and its log-sum-exp.
    pub partials: Partials,
}

impl<K: Forward> Kernel for Split<K> {
    type Params = SplitParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    fn grid(params: &SplitParams) -> [u32; 3] {
        [params.forward.order.tiles * params.partials.slices.get(), 1, 1]
    }
}

/// Hopper kernel `K` in the same way. As many blocks as the card holds at once take slice after slice.
pub struct HopperSplit<K>(PhantomData<K>);

/// What a [`HopperSplit`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperSplitParams {
    /// The forward. Its `o` and `lse` are [`Combine`]'s to write; of its rounds only the order counts.
    pub hopper: HopperParams,
    /// As [`SplitParams::partials`].
    pub partials: Partials,
}

impl AsRef<HopperParams> for HopperSplitParams {
    fn as_ref(&self) -> &HopperParams {
        &self.hopper
    }
}

impl<K: Forward> Kernel for HopperSplit<K> {
    type Params = HopperSplitParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const PARAM_ALIGN: u32 = K::PARAM_ALIGN;
    const BOXES: &'static [[u32; 2]] = K::BOXES;
    fn grid(params: &HopperSplitParams) -> [u32; 3] {
        let order = &params.hopper.rounds.order;
        [(order.tiles * params.partials.slices.get()).min(order.resident), 1, 1]
    }
}

forward_as! {
    Split: Split;
    HopperSplit: Slices;
}
