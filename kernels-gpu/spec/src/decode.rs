//! The decode family: few queries a sequence on a long cache in pages, lengths on the device. Its
//! configurations, [`params`] and table ([`entries`]).
use crate::{DType, DecodeParams, Element, Kernel, MaskKind, MaskMarker, Target};
use core::marker::PhantomData;

pub mod entries;
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

/// A decode kernel's numbers, as the host sees them.
pub trait Decoding: Kernel<Params = DecodeParams> {
    /// Element type of queries and output.
    const DTYPE: DType;
    /// Element type of the cache.
    const CACHE: DType;
    /// Largest head dim.
    const HEAD_DIM: u32;
    /// Most rows of a block: queries times the heads that share a key head.
    const ROWS: u32;
    /// Mask.
    const MASK: MaskKind;
    /// How keys lie in pages.
    const PAGES: PageKind;
    /// Warps of a block.
    const WARPS: u32;
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
> Decoding for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    const DTYPE: DType = Q::DTYPE;
    const CACHE: DType = E::DTYPE;
    const HEAD_DIM: u32 = D as u32 * 16;
    const ROWS: u32 = G as u32 * 8;
    const MASK: MaskKind = Mask::KIND;
    const PAGES: PageKind = Page::KIND;
    const WARPS: u32 = WARPS as u32;
}
