//! Prefill on a paged KV cache: many queries per sequence see all keys of the sequence so far.
use crate::entries::{Portable, RunAs};
use crate::forward::Tile;
use crate::lengths::{self, Span};
use crate::rows::Rows;
use crate::softmax::Softmax;
use crate::tensors::{TensorTile, TensorsOf};
use crate::work::{Problem, QueryTile, SequenceTile};
use attention_tile::{CacheRows, HeadScales, LoadScales, head_of};
use spec::{Element, FwdParams, Kernel, MaskMarker, Paged, PagedParams, Sm80, VariantParams, WorkTile};
use tile::epilogue::Spent;
use tile::group::{Capability, WarpRows};
use tile::mma::{Acc, Mma};
use tile::{Block, Smem, Warp};

/// A tile of one sequence, whose keys and values lie in a cache.
#[derive(Clone, Copy)]
pub struct CacheTile<'p, S> {
    of: SequenceTile,
    p: &'p PagedParams<S>,
}

impl<S: LoadScales> QueryTile for CacheTile<'_, S> {
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn before(&self) -> u32 {
        self.of.before()
    }
    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        self.of.rows(p, tile_m)
    }
}

impl<'p, S: LoadScales> TensorTile for CacheTile<'p, S> {
    const PAGES: bool = true;
    type Keys<T: Element, const D: usize> = CacheRows<'p, T, D>;

    #[inline(always)]
    fn tensors<E: Mma, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tile_m: u32,
        own_values: bool,
    ) -> TensorsOf<Self, E, D, DV> {
        let CacheTile { of, p: PagedParams { cache, values, .. } } = self;
        let [k, v] = CacheRows::new(cache, of.sequence, of.tile.kv_head, of.keys.rows());
        let [_, own] = CacheRows::new(values, of.sequence, of.tile.kv_head, of.keys.rows());
        of.tensors::<E, D, DV>(p, tile_m, own_values).with(k, if own_values { own } else { v.retyped() })
    }
    #[inline(always)]
    fn stored<T: Element, const D: usize>(&self, _: &FwdParams) -> [CacheRows<'p, T, D>; 2] {
        CacheRows::new(&self.p.cache, self.of.sequence, self.of.tile.kv_head, self.of.keys.rows())
    }
    #[inline(always)]
    fn scale(&self, which: usize, by: &impl Capability) -> f32 {
        self.p.scales.load(which, head_of(self.of.sequence, self.of.tile.kv_head, by))
    }
    #[inline(always)]
    fn row_scales(&self) -> Option<HeadScales<'_>> {
        let (cache, SequenceTile { sequence, tile, keys, .. }) = (&self.p.cache, self.of);
        let scales = self.p.scales.both()?;
        Some(HeadScales { cache, scales, sequence, head: tile.kv_head, rows: keys.rows() })
    }

    /// See [`SequenceTile`]'s `store`.
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        _: &TensorsOf<Self, E, D, DV>,
        acc_o: Acc<W, DV>,
        softmax: &Softmax<W>,
        place: Spent<E, M, DV>,
        mine: WarpRows<M, W>,
    ) {
        self.of.tensors::<E, D, DV>(p, M as u32 * 16, D != DV).store(acc_o, softmax, place, mine);
    }
}

impl<'p, S> CacheTile<'p, S> {
    /// The sequence, and the key head.
    #[inline(always)]
    pub fn head(&self) -> [u32; 2] {
        [self.of.sequence, self.of.tile.kv_head]
    }

    /// Tile `tile` of a sequence's queries, in tiles of `tile_m` queries.
    #[inline(always)]
    pub fn of(
        p: &'p PagedParams<S>,
        tile: WorkTile,
        tile_m: u32,
        sequence: u32,
        queries: Span,
        warp: Warp,
    ) -> Self {
        let keys = Span::upto(lengths::length(&p.lengths, sequence, p.max_keys)).uniform(warp);
        let before = tile.m_block * tile_m;
        let last_at_last = keys.rows() as i32 - queries.rows() as i32;
        let shift = last_at_last + p.forward.window.shift + before as i32;
        let of = SequenceTile {
            tile: WorkTile { m_block: 0, ..tile },
            sequence,
            queries: queries.skip(before).uniform(warp),
            keys,
            shift: warp.uniform(shift as u32) as i32,
            before,
        };
        CacheTile { of, p }
    }
}

/// The tile at index `index` of the order, its sequence, and the queries of this sequence. Returns `None` if
/// the tile does not exist at the current lengths. All warps of a block find the same tile.
#[inline(always)]
pub(super) fn find<S>(
    p: &PagedParams<S>,
    index: u32,
    tile_m: u32,
    warp: Warp,
) -> Option<(WorkTile, u32, Span)> {
    let PagedParams { forward, sequences, cu_seqlens_q, .. } = p;
    let tile = forward.order.tile(index);
    if cu_seqlens_q.count() == 0 {
        return Some((tile, tile.batch, Span::upto(forward.q.rows)));
    }
    let sequence = sequences.find(tile.m_block, |first, step| {
        let sequence = first + warp.lane() * step;
        let begin = sequences.begin(sequence, lengths::start(cu_seqlens_q, sequence), tile_m);
        warp.count(sequence < sequences.count && begin <= tile.m_block)
    })?;
    let queries = Span::load(cu_seqlens_q, sequence, forward.q.rows);
    let m_block = tile.m_block.wrapping_sub(sequences.begin(sequence, queries.first(), tile_m));
    let exists = m_block < queries.rows().div_ceil(tile_m);
    exists.then_some((WorkTile { m_block, ..tile }, sequence, queries))
}

impl<K: Tile> Portable for Paged<K> {
    #[inline(always)]
    fn body<C: Kernel>(p: &Self::Params, variant: &VariantParams<K>, mut block: Block<C>, smem: Smem<C>) {
        let warp = block.warp();
        if let Some((tile, sequence, queries)) = find(p, block.index(), K::INFO.tile_m, warp) {
            let tile = CacheTile::of(p, tile, K::INFO.tile_m, warp.uniform(sequence), queries, warp);
            K::tile(&p.forward, variant, &tile, &mut block, smem)
        }
    }
}

impl<K: Tile<Mask: MaskMarker<Params = ()>>> RunAs<Paged<K>, Sm80> for K {
    #[inline(always)]
    fn run_as(p: PagedParams<K::Scales>, block: Block<Paged<K>>, smem: Smem<Paged<K>>) {
        Paged::<K>::body(&p, &(), block, smem)
    }
}
