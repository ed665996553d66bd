//! MLA decode on Hopper, on latents of eight bits.
use crate::{
    AttnInfo, AttnKernel, Contract, DecodeParams, Element, Kernel, Line, MaskMarker, MlaHopper, Sm90a, Target,
};
use core::marker::PhantomData;

/// [`MlaHopper`] on rows of type `S`. The warpgroups copy the rows as they are stored (`cp.async`), into the
/// stages where the rows have sixteen bits, and convert them there. The kernel has no tensor map: pages may
/// have any size.
pub struct MlaHopperDequant<E, S, Mask>(PhantomData<(E, S, Mask)>);

impl<E: Element, S: Element, Mask> Kernel for MlaHopperDequant<E, S, Mask> {
    type Params = DecodeParams;
    const TARGET: Target = MlaHopper::<E, Mask>::TARGET;
    const THREADS: u32 = MlaHopper::<E, Mask>::THREADS;
    const SMEM_BYTES: usize = MlaHopper::<E, Mask>::SMEM_BYTES;
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

impl<E: Element, S: Element, Mask: MaskMarker> Line for MlaHopperDequant<E, S, Mask> {
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        kv_dtype: S::DTYPE,
        ..<MlaHopper<E, Mask> as Line>::INFO
    };
}

impl<E: Element, S: Element, Mask: MaskMarker> AttnKernel for MlaHopperDequant<E, S, Mask> {
    type Isa = Sm90a;
    type Mask = Mask;
}
