//! Many queries on a cache in pages, on Hopper: as [`super::varlen`], with keys and values box by box out of
//! the pages that have them, which the threads that copy look up.
use crate::entries::RunAs;
use crate::hopper::Body;
use crate::hopper::scheduler::MapTile;
use crate::hopper::varlen::{Found, VarlenScheduler, whose};
use crate::lengths::{self, Span};
use crate::mask::Rows;
use crate::work::{Problem, QueryTile, SequenceTile};
use attention_tile::{InPages, PagedRow};
use spec::{HopperPagedParams, Paged, RaggedMap, Sm90a, WorkTile};
use tile::global::GlobalVec;
use tile::tma::{RaggedRow, TileInfo};
use tile::{Block, Smem};

/// A tile of one sequence, whose keys and values lie in a cache.
#[derive(Clone, Copy)]
struct CacheTile(SequenceTile);

impl QueryTile for CacheTile {
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        self.0.rows(p, tile_m)
    }
}

impl MapTile for CacheTile {
    type Queries = RaggedMap;
    type Keys = InPages;
    type Params = HopperPagedParams;

    #[inline(always)]
    fn queries(&self, row: u32) -> RaggedRow {
        self.0.query(row)
    }

    #[inline(always)]
    fn keys(&self, p: &HopperPagedParams, row: u32) -> PagedRow {
        let SequenceTile { tile, sequence, keys, .. } = self.0;
        PagedRow::new(&p.cache, p.boxes, sequence, tile.kv_head, row, keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &HopperPagedParams) -> GlobalVec {
        self.0.lse(&p.forward.lse, p.forward.q_len, |first| p.queries.div_rem(first).0)
    }
}

impl Found for CacheTile {
    #[inline(always)]
    fn find(p: &HopperPagedParams, tile: WorkTile, tile_m: u32) -> Self {
        let HopperPagedParams { forward, cu_seqlens_q, queries: each, .. } = p;
        let packed = cu_seqlens_q.count > 0;
        let of @ (sequence, queries, _) = whose(
            &p.sequences,
            tile.m_block,
            tile_m,
            |sequence| lengths::start(cu_seqlens_q, sequence),
            |sequence| match packed {
                true => Span::load(cu_seqlens_q, sequence, forward.q_len),
                false => Span::of_words([sequence * each.get(), each.get()]),
            },
        );
        let keys = Span::upto(lengths::length(&p.lengths, sequence, forward.k_len));
        let aligned = (keys.rows() as i32 - queries.rows() as i32).wrapping_add(forward.window.shift);
        CacheTile(SequenceTile::new(tile, of, keys, aligned))
    }

    #[inline(always)]
    fn note(&self) -> TileInfo {
        self.0.note()
    }

    #[inline(always)]
    fn noted(note: TileInfo) -> Self {
        CacheTile(SequenceTile::noted(note))
    }
}

impl<K: Body> RunAs<Paged<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: HopperPagedParams, block: Block<Paged<K>>, smem: Smem<Paged<K>>) {
        let source = |index, count| VarlenScheduler::<CacheTile>::of(&p, index, count, K::INFO.tile_m);
        K::body(&p, source, block, smem)
    }
}
