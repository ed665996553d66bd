//! Prefill of a mixed batch on a paged KV cache: it takes the sequences of many queries. Decode takes the
//! other sequences ([`crate::decode::batch`]).
use crate::entries::{Portable, RunAs};
use crate::forward::Tile;
use crate::forward::paged::CacheTile;
use crate::lengths::{self, Span};
use spec::{Kernel, ManyParams, ManyQueries, MaskMarker, PagedParams, Sm80, VariantParams, WorkTile};
use tile::{Block, Smem, Warp};

/// The tile at index `index` of the order, its sequence, and the queries of this sequence. Returns `None` if
/// the tile does not exist at the current lengths, or if the queries are few. All warps of a block find the
/// same tile.
#[inline(always)]
fn find<S>(
    p: &ManyParams<PagedParams<S>>,
    index: u32,
    tile_m: u32,
    warp: Warp,
) -> Option<(WorkTile, u32, Span)> {
    let ManyParams { paged: PagedParams { forward, sequences, cu_seqlens_q, .. }, many } = p;
    let tile = forward.order.tile(index);
    let sequence = sequences.find(tile.m_block, |first, step| {
        let sequence = first + warp.lane() * step;
        let begin = many.begin(sequence, lengths::start(cu_seqlens_q, sequence), tile_m);
        warp.count(sequence < sequences.count && begin <= tile.m_block)
    })?;
    let queries = Span::load(cu_seqlens_q, sequence, forward.q.rows).many(many.least.get() - 1)?;
    let m_block = tile.m_block.wrapping_sub(many.begin(sequence, queries.first(), tile_m));
    let exists = m_block < queries.rows().div_ceil(tile_m);
    exists.then_some((WorkTile { m_block, ..tile }, sequence, queries))
}

impl<K: Tile> Portable for ManyQueries<K> {
    #[inline(always)]
    fn body<C: Kernel>(p: &Self::Params, variant: &VariantParams<K>, mut block: Block<C>, smem: Smem<C>) {
        let warp = block.warp();
        if let Some((tile, sequence, queries)) = find(p, block.index(), K::INFO.tile_m, warp) {
            let tile = CacheTile::of(&p.paged, tile, K::INFO.tile_m, warp.uniform(sequence), queries, warp);
            K::tile(&p.paged.forward, variant, &tile, &mut block, smem)
        }
    }
}

impl<K: Tile<Mask: MaskMarker<Params = ()>>> RunAs<ManyQueries<K>, Sm80> for K {
    #[inline(always)]
    fn run_as(
        p: ManyParams<PagedParams<K::Scales>>,
        block: Block<ManyQueries<K>>,
        smem: Smem<ManyQueries<K>>,
    ) {
        ManyQueries::<K>::body(&p, &(), block, smem)
    }
}
