//! Portable forward kernels on keys and values of another type than the products' operands.
use crate::cache::row_scales_bytes;
use crate::forward::tile_bytes;
use crate::*;
use core::marker::PhantomData;

/// [`Fwd`] on keys and values of type `S`: the block converts each stage to the operands' type `E`. One stage
/// of `S` is in flight while the block computes on the converted stage before it. A thread block owns `M`
/// query tiles, `W` per warp; a stage has `N` key tiles, the head dim has `D`; the first `Q_STEPS` k-steps of
/// Q stay in registers. Every kernel has scales of keys and of values.
pub struct FwdDequant<
    E,
    S,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
>(PhantomData<(E, S, Mask)>);

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> Kernel for FwdDequant<E, S, Mask, M, W, N, D, Q_STEPS>
{
    type Params = FwdParams;
    const TARGET: Target = {
        assert!(Self::SMEM_BYTES <= 163 << 10, "an A100 has less shared memory");
        S::TARGET
    };
    const THREADS: u32 = {
        assert!(M.is_multiple_of(W), "the warps' row tiles must make up the block's");
        (M / W) as u32 * 32
    };
    const SMEM_BYTES: usize =
        tile_bytes::<E>() * D * (M + 2 * N) + tile_bytes::<S>() * D * 2 * N + row_scales_bytes::<S>(N * 16);
    fn grid(params: &FwdParams) -> [u32; 3] {
        [params.order.tiles, 1, 1]
    }
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> Line for FwdDequant<E, S, Mask, M, W, N, D, Q_STEPS>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        kv_dtype: S::DTYPE,
        stages: 1,
        ..<Fwd<E, Mask, M, W, 1, N, D, Q_STEPS, 1> as Line>::INFO
    };
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> AttnKernel for FwdDequant<E, S, Mask, M, W, N, D, Q_STEPS>
{
    type Isa = Sm80;
    type Mask = Mask;
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> Forward for FwdDequant<E, S, Mask, M, W, N, D, Q_STEPS>
{
    type Scales = [PerHead; 2];
    type OnVarlen = <Sm80 as IsaMarker>::OnVarlen;
}
