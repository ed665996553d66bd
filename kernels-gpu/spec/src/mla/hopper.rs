//! MLA decode on Hopper: two warpgroups with `wgmma` and TMA.
use crate::info::panel;
use crate::variant::no_variant;
use crate::{
    AttnInfo, AttnKernel, Contract, DecodeParams, Element, Isa, Kernel, Keys, Line, MaskMarker, PageBoxes,
    PagedMap, Pass, Path, Queries, Schedule, Sm90a, Target, TensorMap, TileScheduler,
};
use core::marker::PhantomData;

/// MLA decode on Hopper, for keys of 576 columns whose first 512 columns are the values. A block takes 64
/// rows (queries x query heads per latent head). Each of two warpgroups has 256 columns of O. The warpgroups
/// take turns at stages of 64 keys: the owner of a stage computes S and P, and passes P to the other
/// warpgroup (FlashMLA's seesaw schedule). There are two stages, which have two parts each: the first 256
/// columns, and the other 320. The parts are filled and released independently.
///
/// The kernel reads pages that TMA can copy: pages of a multiple of 8 keys, and dense caches.
pub struct MlaHopper<E, Mask>(PhantomData<(E, Mask)>);

impl<E, Mask> MlaHopper<E, Mask> {
    /// Base tiles of keys per stage.
    pub const KEYS: usize = 4;
    /// Base tiles of columns: of keys, of values, and of a stage's two parts.
    pub const D: usize = 36;
    /// See [`Self::D`].
    pub const DV: usize = 32;
    /// See [`Self::D`].
    pub const PARTS: [usize; 2] = [16, 20];
}

/// Parameters of [`MlaHopper`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaHopperParams {
    /// Keys: boxes of 64 columns, and of a number of rows that divides a page.
    pub k: PagedMap,
    /// The parameters of all decode kernels.
    pub decode: DecodeParams,
    /// The boxes of K.
    pub boxes: PageBoxes,
}
contract::no_padding! {
    MlaHopperParams { k, decode, boxes }
}
no_variant!(MlaHopperParams);

impl<E: Element, Mask> Kernel for MlaHopper<E, Mask> {
    type Params = MlaHopperParams;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = 2 * 128;
    /// Q, two stages with their mbarriers, and P with the maxima of its rows. A pipeline ends at a multiple
    /// of 1024 bytes.
    const SMEM_BYTES: usize = {
        let tile = 256 * E::BYTES;
        let stages = 2 * Self::KEYS * Self::D * tile + 2 * 1024;
        4 * Self::D * tile + stages + 4 * Self::KEYS * tile + 1024
    };
    const PARAM_ALIGN: u32 = TensorMap::ALIGN;
    const BOXES: &'static [[u32; 2]] = &[[panel(Self::D as u32 * 16), Self::KEYS as u32 * 16]];
    fn grid(params: &MlaHopperParams) -> [u32; 3] {
        [params.decode.order.blocks, 1, 1]
    }
}

impl<E: Element, Mask: MaskMarker> Line for MlaHopper<E, Mask> {
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        pass: Pass::Forward,
        isa: Isa::Sm90a,
        path: Path::TensorCores,
        schedule: Schedule::Seesaw,
        scheduler: TileScheduler::Lengths,
        queries: Queries::Batched,
        keys: Keys::Latent,
        splits: true,
        dtype: E::DTYPE,
        kv_dtype: E::DTYPE,
        o_dtype: E::DTYPE,
        grad_dtype: None,
        head_dim: Self::D as u32 * 16,
        head_dim_v: Self::DV as u32 * 16,
        mask: Mask::KIND,
        scores: Mask::SCORES,
        tile_m: 64,
        tile_n: Self::KEYS as u32 * 16,
        stages: 2,
    };
}

impl<E: Element, Mask: MaskMarker> AttnKernel for MlaHopper<E, Mask> {
    type Isa = Sm90a;
    type Mask = Mask;
}
