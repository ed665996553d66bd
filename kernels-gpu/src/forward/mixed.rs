//! Prefill of a mixed batch on a paged KV cache: it takes the sequences of many queries. Decode takes the
//! other sequences ([`crate::decode::batch`]).
use crate::entries::{Portable, RunAs};
use crate::forward::Tile;
use crate::forward::paged::CacheTile;
use crate::lengths::{self, Span};
use spec::{Kernel, ManyParams, ManyQueries, MaskMarker, PagedParams, Sm80, VariantParams, WorkTile};
use tile::{Block, Smem, Warp};

/// The tile at index `index` of the order, its sequence, and the queries of this sequence. Returns `None` if
/// the tile does not exist at the current lengths. All warps of a block find the same tile.
#[inline(always)]
fn find<S>(
    p: &ManyParams<PagedParams<S>>,
    index: u32,
    tile_m: u32,
    warp: Warp,
) -> Option<(WorkTile, u32, Span)> {
    let ManyParams { paged: PagedParams { forward, sequences, cu_seqlens_q, .. }, begins } = p;
    let tile = forward.order.tile(index);
    let m_block = lengths::numbered(begins, sequences, forward.order.m_blocks - tile.m_block)?;
    let sequence = sequences.find(m_block, |first, step| {
        let sequence = first + warp.lane() * step;
        warp.count(sequence < sequences.count && lengths::start(begins, sequence) <= m_block)
    })?;
    let queries = Span::load(cu_seqlens_q, sequence, forward.q.rows);
    let m_block = m_block.wrapping_sub(lengths::start(begins, sequence));
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
