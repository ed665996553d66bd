//! MLA decode on latents of eight bits.
use crate::{
    AttnInfo, AttnKernel, Contract, DecodeParams, Element, Kernel, Line, MaskMarker, Mla, Sm80, Target,
};
use core::marker::PhantomData;

/// [`Mla`] on rows of type `S`: the block converts each stage to the operands' type `E`. A stored row has
/// `DS` times 16 bytes. While the block converts and computes a stage, it copies the next stage.
pub struct MlaDequant<
    E,
    S,
    Mask,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DS: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const HELD: bool,
>(PhantomData<(E, S, Mask)>);

impl<
    E: Element,
    S: Element,
    Mask,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DS: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const HELD: bool,
> Kernel for MlaDequant<E, S, Mask, G, OWN, KEYS, D, DS, DV, SHARE, WARPS, HELD>
{
    type Params = DecodeParams;
    const TARGET: Target = {
        assert!(Self::SMEM_BYTES <= 99 << 10, "an RTX 30 has less shared memory");
        S::TARGET
    };
    const THREADS: u32 = WARPS as u32 * 32;
    const SMEM_BYTES: usize = <Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, 1, HELD> as Kernel>::SMEM_BYTES
        + 2 * KEYS * DS * 256;
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DS: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const HELD: bool,
> Line for MlaDequant<E, S, Mask, G, OWN, KEYS, D, DS, DV, SHARE, WARPS, HELD>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        kv_dtype: S::DTYPE,
        stages: 2,
        ..<Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, 1, HELD> as Line>::INFO
    };
}

impl<
    E: Element,
    S: Element,
    Mask: MaskMarker,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DS: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const HELD: bool,
> AttnKernel for MlaDequant<E, S, Mask, G, OWN, KEYS, D, DS, DV, SHARE, WARPS, HELD>
{
    type Isa = Sm80;
    type Mask = Mask;
}
