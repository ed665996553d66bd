//! Decode kernels: few queries per sequence on a long paged KV cache, with lengths on the device. This file
//! has the configurations, [`params`] has the parameters.
use crate::cache::row_scales_bytes;
use crate::{
    AttnInfo, AttnKernel, CombineInfo, Contract, DType, DecodeParams, Dependent, Element, Isa, Kernel, Keys,
    Line, MaskMarker, PageKind, Pass, Path, Queries, Schedule, Sm80, SplitKernels, Target, TileScheduler,
};
use core::marker::PhantomData;

pub mod params;

/// The alignment of keys in pages, as a type.
pub trait PageMarker: Copy {
    /// The alignment of keys in pages, as a value.
    const KIND: PageKind;
}
/// The kernel reads pages of a multiple of 16 keys, and dense KV caches.
#[derive(Clone, Copy, Debug)]
pub struct Tiles;
/// The kernel reads pages of any size.
#[derive(Clone, Copy, Debug)]
pub struct Rows;
impl PageMarker for Tiles {
    const KIND: PageKind = PageKind::Tiles;
}
impl PageMarker for Rows {
    const KIND: PageKind = PageKind::Rows;
}

/// Decode attention. A block takes up to `8 * G` rows (queries x query heads per key head), and the head dim
/// has `D` base tiles. Queries and output have dtype `Q`, the KV cache has dtype `E`. Each of `WARPS` warps
/// has its own stream of `SLOTS` tiles of 16 keys.
///
/// Kernels of [`crate::Causal`] and [`crate::Local`] take the mask from [`DecodeParams::window`]; causal
/// kernels also run full masks. Kernels of other masks read all keys of a sequence. For these kernels, the
/// window in the combine kernel's parameters must be unbounded. Every decode kernel has a parameter for
/// sinks.
pub struct Decode<Q, E, Mask, Page, const G: usize, const D: usize, const WARPS: usize, const SLOTS: usize>(
    PhantomData<(Q, E, Mask, Page)>,
);

/// The combine kernel of [`Decode`], for launches without counters.
pub struct DecodeCombine<E, const D: usize>(PhantomData<E>);

impl<Q, E: Element, Mask, Page, const G: usize, const D: usize, const WARPS: usize, const SLOTS: usize> Kernel
    for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    type Params = DecodeParams;
    const TARGET: Target = E::TARGET;
    const THREADS: u32 = WARPS as u32 * 32;
    const SMEM_BYTES: usize =
        WARPS * SLOTS * (2 * D * 256 * E::BYTES + row_scales_bytes::<E>(16)) + q_bytes(D * G);
    const BLOCKS_PER_SM: u32 = warps_per_sm::<E>(Self::SMEM_BYTES, G, D) / WARPS as u32;
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

impl<E: Element, const D: usize> Kernel for DecodeCombine<E, D> {
    type Params = DecodeParams;
    const THREADS: u32 = 256;
    /// Bytes of the shared memory in which a block searches for its work item.
    const SMEM_BYTES: usize = params::SEARCH_WORDS * 4;
    const BLOCKS_PER_SM: u32 = 2;
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

/// Warps that an SM can hold. A warp of a kernel for short work, which has at most 48 KiB of shared memory
/// per block, waits for most of its time, so the SM needs more of them, with at most 128 registers each.
/// A warp of an int8 cache computes more for each byte: with 8 rows, 128 registers suffice at 4 base tiles,
/// and 168 at 8.
const fn warps_per_sm<E: Element>(smem_bytes: usize, groups: usize, base_tiles: usize) -> u32 {
    match (matches!(E::DTYPE, DType::Int8) && groups == 1, base_tiles) {
        (true, ..=4) => 16,
        (true, ..=8) => 12,
        _ if smem_bytes <= 48 << 10 => 16,
        _ => 8,
    }
}

/// Bytes of shared memory for Q of `steps` k-steps of 8 rows each; 0 for at most 24 k-steps, which fit
/// registers.
const fn q_bytes(steps: usize) -> usize {
    if steps > 24 { steps * 256 } else { 0 }
}

impl<
    Q: Element,
    E: Element,
    Mask: MaskMarker,
    Page: PageMarker,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
> Line for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
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
        keys: Keys::Cache(Page::KIND),
        splits: true,
        dtype: Q::DTYPE,
        kv_dtype: E::DTYPE,
        o_dtype: Q::DTYPE,
        grad_dtype: None,
        head_dim: D as u32 * 16,
        head_dim_v: D as u32 * 16,
        mask: Mask::KIND,
        scores: Mask::SCORES,
        tile_m: G as u32 * 8,
        tile_n: 16,
        stages: SLOTS as u32,
    };
}

impl AttnInfo {
    /// Whether this kernel is a decode kernel for short work: more warps per SM, fewer stages.
    pub const fn is_for_short_work(&self) -> bool {
        let many = self.warps() * self.contract.min_blocks_per_sm > 8;
        // Every kernel of int8 caches has many warps per SM.
        matches!(self.schedule, Schedule::Transposed) && many && !matches!(self.kv_dtype, DType::Int8)
    }
}

impl<
    Q: Element,
    E: Element,
    Mask: MaskMarker,
    Page: PageMarker,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
> AttnKernel for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    type Isa = Sm80;
    type Mask = Mask;
}

impl<E: Element, const D: usize> Line for DecodeCombine<E, D> {
    type Info = CombineInfo;
    const INFO: CombineInfo = CombineInfo {
        contract: Contract::of::<Self>(""),
        dtype: E::DTYPE,
        head_dim: D as u32 * 16,
        of: SplitKernels::Decoding,
    };
}

/// The combine kernel of Hopper's decode kernels, which let it begin early.
impl<E: Element, const D: usize> Line for Dependent<DecodeCombine<E, D>> {
    type Info = CombineInfo;
    const INFO: CombineInfo = CombineInfo {
        contract: Contract::of::<Self>(""),
        of: SplitKernels::Seesaw,
        ..<DecodeCombine<E, D>>::INFO
    };
}
