//! Forward attention on Hopper in FlashAttention-3's order (Shah et al. 2024, algorithm 2). A producer
//! warpgroup copies. Consumer warpgroups take turns at issuing products: they issue S(n) = Q K(n)^T together
//! with O += P(n + 1) V(n + 1). Blocks are persistent.
//!
//! - [`forward`]: cross-tile overlap. [`wide`]: head dims that leave no shared memory for cross-tile overlap.
//!   [`halves`]: head dims whose O leaves no registers. [`varlen`], [`paged`]: these schedules, on varlen
//!   tensors and on paged KV caches. [`split`]: split-KV. [`dequant`]: the first of these schedules, on keys
//!   and values of eight bits. [`fp8`]: products of eight bits, on the tiles of
//!   [`scaled`].
//! - [`backward`]: all gradients in one pass.
//! - [`mla`]: decode on a latent cache, in FlashMLA's order. [`latents`]: its keys. [`shared_softmax`]: its
//!   softmax.
//! - [`mainloop`]: the producer's copies and the loop over key blocks, which all kernels share.
//!   [`scheduler`]: work tiles and tile schedulers. [`softmax`]: a softmax that searches for a maximum only
//!   if it must.
//!
//! A kernel calls its mask and scores in one place, `mainloop::View::see`, and its sink in one other place,
//! [`softmax::BoundedSoftmax::finish`].

pub mod backward;
pub mod dequant;
pub mod forward;
pub mod fp8;
pub mod halves;
pub mod latents;
pub mod mainloop;
pub mod mla;
pub mod paged;
pub mod scaled;
pub mod scheduler;
pub mod shared_softmax;
pub mod softmax;
pub mod split;
pub mod varlen;
pub mod wide;

use crate::entries::{Run, RunAs};
use scheduler::{ForwardOf, ParamsOf, Scheduler, StaticScheduler};
use spec::{
    AttnKernel, Forward, FwdHopper, FwdHopperHalves, FwdHopperWide, HasVariant, HopperParams, Kernel,
    MaskMarker, RaggedMap, Sm90a, VariantParams, VarlenParams, With,
};
use tile::{Block, Smem};

/// A schedule. A schedule processes work tiles from any tile scheduler.
pub trait Body: Forward<Isa = Sm90a, OnVarlen = VarlenParams<HopperParams<RaggedMap>>> {
    /// Processes the work tiles of a block. `source(i, n)` is the tile scheduler of block `i` of `n`.
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + HasVariant<VariantParams<Self>>>>(
        p: &ParamsOf<S>,
        variant: &VariantParams<Self>,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    );
}

/// A Hopper kernel, whose body runs under any contract that has its threads, shared memory and tensor maps.
pub trait HopperKernel: AttnKernel<Isa = Sm90a> {
    /// The kernel's forward parameters, which contain the tensor maps.
    type Forward;
    /// Runs one thread block.
    fn enter<C: Kernel<Params: AsRef<Self::Forward> + HasVariant<VariantParams<Self>>>>(
        p: &Self::Params,
        variant: &VariantParams<Self>,
        block: Block<C>,
        smem: Smem<C>,
    );
}

impl<K: Body<Params = HopperParams>> HopperKernel for K {
    type Forward = HopperParams;
    #[inline(always)]
    fn enter<C: Kernel<Params: AsRef<HopperParams> + HasVariant<VariantParams<K>>>>(
        p: &HopperParams,
        variant: &VariantParams<K>,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        K::body(p, variant, |index, count| StaticScheduler(p.rounds.of(index, count)), block, smem)
    }
}

impl<K: HopperKernel> RunAs<With<K>, Sm90a> for K
where
    K::Params: AsRef<K::Forward>,
{
    #[inline(always)]
    fn run_as(p: <With<K> as Kernel>::Params, block: Block<With<K>>, smem: Smem<With<K>>) {
        K::enter(&p.kernel, &p.variant, block, smem)
    }
}

macro_rules! run {
    ($($config:ident<$($v:ident)?>;)*) => {$(
        impl<
            E,
            Mask: MaskMarker<Params = ()>,
            const W: usize,
            const N: usize,
            const D: usize,
            const STAGES: usize,
            const ORDERED: bool,
            $(const $v: usize,)?
        > Run for $config<E, Mask, W, N, D, STAGES, ORDERED, $($v)?>
        where
            Self: HopperKernel<Params = HopperParams, Forward = HopperParams, Mask = Mask>,
        {
            #[inline(always)]
            fn run(p: HopperParams, block: Block<Self>, smem: Smem<Self>) {
                Self::enter(&p, &(), block, smem)
            }
        }
    )*};
}
run! {
    FwdHopper<OF>;
    FwdHopperWide<DV>;
    FwdHopperHalves<H>;
}
