//! Hopper's forward kernels on keys and values of another type than the products' operands.
use crate::info::{EIGHT_BIT_PANEL, panel};
use crate::*;
use core::marker::PhantomData;

/// [`FwdHopper`] on keys and values of type `S`, of eight bits: TMA copies them into the stages of K and V,
/// and seven warps convert them there to the operands' type `E`. Every kernel has
/// scales of keys and of values.
pub struct FwdHopperDequant<
    E,
    S,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
>(PhantomData<(E, S, Mask)>);

/// The kernel on keys and values of the operands' type.
type Plain<
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> = FwdHopper<E, Mask, W, N, D, STAGES, ORDERED>;

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> Kernel for FwdHopperDequant<E, S, Mask, W, N, D, STAGES, ORDERED>
{
    type Params = HopperParams;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = Plain::<E, Mask, W, N, D, STAGES, ORDERED>::THREADS + 128;
    const SMEM_BYTES: usize = Plain::<E, Mask, W, N, D, STAGES, ORDERED>::SMEM_BYTES;
    const PARAM_ALIGN: u32 = TensorMap::ALIGN;
    const BOXES: &'static [[u32; 2]] =
        &[[panel(D as u32 * 16), AttnInfo::Q_BOX_ROWS], [EIGHT_BIT_PANEL, N as u32 * 16]];
    fn grid(params: &HopperParams) -> [u32; 3] {
        [params.rounds.blocks(), 1, 1]
    }
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> Line for FwdHopperDequant<E, S, Mask, W, N, D, STAGES, ORDERED>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        kv_dtype: S::DTYPE,
        ..<Plain<E, Mask, W, N, D, STAGES, ORDERED> as Line>::INFO
    };
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> AttnKernel for FwdHopperDequant<E, S, Mask, W, N, D, STAGES, ORDERED>
{
    type Isa = Sm90a;
    type Mask = Mask;
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> Forward for FwdHopperDequant<E, S, Mask, W, N, D, STAGES, ORDERED>
{
    type Scales = [PerHead; 2];
    type OnVarlen = <Sm90a as IsaMarker>::OnVarlen;
}
