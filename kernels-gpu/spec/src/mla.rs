//! MLA decode (multi-head latent attention, DeepSeek-V2): few queries on a latent cache, whose values are the
//! first columns of its keys. This file has the portable configuration, [`dequant`] has the one for latents
//! of eight bits, [`hopper`] and [`hopper_dequant`] have Hopper's, and [`sparse`] has the kernels on lists of
//! keys.
use crate::{
    AttnInfo, AttnKernel, Contract, DecodeParams, Element, Isa, Kernel, Keys, Line, MaskMarker, Pass, Path,
    Queries, Schedule, Sm80, Target, TileScheduler,
};
use core::marker::PhantomData;

pub mod dequant;
pub mod hopper;
pub mod hopper_dequant;
pub mod sparse;

/// MLA decode: keys have `D` base tiles of columns, and the first `DV` of them are the values. A block takes
/// up to `8 * G` rows (queries x query heads per latent head). The block has `STAGES` stages of `KEYS` tiles
/// of 16 keys, which its `WARPS` warps share. For S^T = K Q^T, each warp takes one tile of keys and `OWN` of
/// the `G` groups of rows. For O^T = V^T P^T, each warp takes all keys and `SHARE` of V's `DV` tiles of
/// columns. If `HELD`, each warp holds its part of Q in registers, else Q is in shared memory. Pages have any
/// size. `Mask` is [`crate::Causal`], which also runs full masks.
pub struct Mla<
    E,
    Mask,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const STAGES: usize,
    const HELD: bool,
>(PhantomData<(E, Mask)>);

/// Bytes for one group of rows and one tile of keys: P, and two values per row. There are two buffers, which
/// alternate.
const GROUP_BYTES: usize = 2 * (256 + 64);

impl<
    E: Element,
    Mask,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const STAGES: usize,
    const HELD: bool,
> Kernel for Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, STAGES, HELD>
{
    type Params = DecodeParams;
    /// On an A100, a block has at most 163 KiB of shared memory.
    const TARGET: Target = Target::From(if Self::SMEM_BYTES <= 163 << 10 { 80 } else { 90 });
    const THREADS: u32 = WARPS as u32 * 32;
    const SMEM_BYTES: usize = {
        let q = if HELD { 0 } else { D * G * 256 };
        STAGES * KEYS * D * 256 * E::BYTES + q + KEYS * G * GROUP_BYTES
    };
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

impl<
    E: Element,
    Mask: MaskMarker,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const STAGES: usize,
    const HELD: bool,
> Line for Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, STAGES, HELD>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        pass: Pass::Forward,
        isa: Isa::Sm80,
        path: Path::TensorCores,
        schedule: Schedule::Transposed,
        scheduler: TileScheduler::Lengths,
        queries: Queries::Batched,
        keys: Keys::Latent,
        splits: true,
        dtype: E::DTYPE,
        kv_dtype: E::DTYPE,
        o_dtype: E::DTYPE,
        grad_dtype: None,
        head_dim: D as u32 * 16,
        head_dim_v: DV as u32 * 16,
        mask: Mask::KIND,
        scores: Mask::SCORES,
        tile_m: G as u32 * 8,
        tile_n: KEYS as u32 * 16,
        stages: STAGES as u32,
    };
}

impl<
    E: Element,
    Mask: MaskMarker,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const STAGES: usize,
    const HELD: bool,
> AttnKernel for Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, STAGES, HELD>
{
    type Isa = Sm80;
    type Mask = Mask;
}
