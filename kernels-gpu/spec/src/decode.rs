//! The decode family: few queries a sequence on a long cache in pages, lengths on the device. Its
//! configurations and [`params`].
use crate::{
    AttnInfo, Contract, DType, DecodeParams, Element, Isa, Kernel, Keys, Line, MaskMarker, Path, Queries,
    Schedule, Target, TileScheduler,
};
use core::marker::PhantomData;

pub mod params;

/// How keys lie in pages, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// 16 neighbouring keys, from a multiple of 16 on, are of one page.
    Tiles,
    /// Every key may be of another page.
    Rows,
}
impl PageKind {
    /// Its name in entry symbols.
    pub const fn name(self) -> &'static str {
        match self {
            PageKind::Tiles => "tiles",
            PageKind::Rows => "rows",
        }
    }
}

/// How keys lie in pages, by type.
pub trait PageMarker: Copy {
    /// The same as a value.
    const KIND: PageKind;
}
/// Pages of a multiple of 16 keys, and caches without pages.
#[derive(Clone, Copy, Debug)]
pub struct Tiles;
/// Pages of any size.
#[derive(Clone, Copy, Debug)]
pub struct Rows;
impl PageMarker for Tiles {
    const KIND: PageKind = PageKind::Tiles;
}
impl PageMarker for Rows {
    const KIND: PageKind = PageKind::Rows;
}

/// Decode attention, each block for up to `8 * G` rows (queries times the heads that share a key head), head
/// dim of `D` base tiles. Queries and output are of `Q`, the cache of `E`. Each of `WARPS` warps has a stream
/// of `SLOTS` tiles of 16 keys of its own. `Mask` is [`crate::Causal`], which does without one too, or
/// [`crate::Local`].
pub struct Decode<Q, E, Mask, Page, const G: usize, const D: usize, const WARPS: usize, const SLOTS: usize>(
    PhantomData<(Q, E, Mask, Page)>,
);

/// Merges the splits of [`Decode`], where no counters tell a block that it is the last one.
pub struct DecodeCombine<E, const D: usize>(PhantomData<E>);

impl<Q, E: Element, Mask, Page, const G: usize, const D: usize, const WARPS: usize, const SLOTS: usize> Kernel
    for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    type Params = DecodeParams;
    const TARGET: Target = E::TARGET;
    const THREADS: u32 = WARPS as u32 * 32;
    const SMEM_BYTES: usize = WARPS * SLOTS * 2 * D * 256 * E::BYTES + q_bytes(D * G);
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

impl<E: Element, const D: usize> Kernel for DecodeCombine<E, D> {
    type Params = DecodeParams;
    const THREADS: u32 = 256;
    /// What finding an item takes.
    const SMEM_BYTES: usize = params::TALLY * 4;
    const BLOCKS_PER_SM: u32 = 2;
    fn grid(params: &DecodeParams) -> [u32; 3] {
        [params.order.blocks, 1, 1]
    }
}

/// Bytes of shared memory for Q, of so many k-steps of 8 rows: none up to 24, which registers have room for.
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
        isa: Isa::Sm80,
        path: Path::TensorCores,
        schedule: Schedule::Transposed,
        scheduler: TileScheduler::Lengths,
        queries: Queries::Batched,
        keys: Keys::Cache(Page::KIND),
        splits: true,
        dtype: Q::DTYPE,
        kv_dtype: E::DTYPE,
        head_dim: D as u32 * 16,
        mask: Mask::KIND,
        tile_m: G as u32 * 8,
        tile_n: 16,
        stages: SLOTS as u32,
    };
}

/// A compiled [`DecodeCombine`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeCombineInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Element type of O.
    pub dtype: DType,
    /// Head dim of the kernels whose splits it merges.
    pub head_dim: u32,
}

impl<E: Element, const D: usize> Line for DecodeCombine<E, D> {
    type Info = DecodeCombineInfo;
    const INFO: DecodeCombineInfo =
        DecodeCombineInfo { contract: Contract::of::<Self>(""), dtype: E::DTYPE, head_dim: D as u32 * 16 };
}
