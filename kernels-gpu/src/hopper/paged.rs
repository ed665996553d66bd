//! Many queries on a cache in pages, on Hopper: as [`super::packed`], with keys and values box by box out of
//! the pages that have them, which the threads that copy look up.
use crate::entries::RunAs;
use crate::hopper::Body;
use crate::hopper::packed::{Found, FoundTiles, OfSequence, whose};
use crate::hopper::portion::Portion;
use crate::lengths::{self, Span};
use crate::mask::Rows;
use attention_tile::{InPages, RowOfCache};
use spec::{HopperPagedParams, Paged, RaggedMap, Sm90a, WorkTile};
use tile::{Block, GlobalVec, Note, RowOfSequence, Smem};

/// A tile of one sequence, whose keys and values lie in a cache.
#[derive(Clone, Copy)]
struct OnCache {
    of: OfSequence,
    sequence: u32,
}

impl Portion for OnCache {
    type Queries = RaggedMap;
    type Keys = InPages;
    type Params = HopperPagedParams;
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn rows(&self, p: &HopperPagedParams, tile_m: u32) -> Rows {
        self.of.rows(p.forward.window, tile_m)
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> RowOfSequence {
        self.of.query(row)
    }

    #[inline(always)]
    fn keys(&self, p: &HopperPagedParams, row: u32) -> RowOfCache {
        let OnCache { of, sequence } = *self;
        RowOfCache::new(&p.cache, p.boxes, sequence, of.kv_head, row, of.keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &HopperPagedParams) -> GlobalVec {
        self.of.lse(&p.forward.lse, p.forward.q_len, |first| p.queries.div_rem(first).0)
    }
}

impl Found for OnCache {
    #[inline(always)]
    fn find(p: &HopperPagedParams, tile: WorkTile, tile_m: u32) -> Self {
        let HopperPagedParams { forward, cu_seqlens_q, queries: each, .. } = p;
        let packed = cu_seqlens_q.count > 0;
        let (sequence, queries, before) = whose(
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
        OnCache { of: OfSequence::new(tile, before, queries, keys, aligned), sequence }
    }

    #[inline(always)]
    fn note(&self) -> Note {
        self.of.note()
    }

    #[inline(always)]
    fn noted(note: Note) -> Self {
        OnCache { of: OfSequence::noted(note), sequence: 0 }
    }
}

impl<K: Body> RunAs<Paged<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: HopperPagedParams, block: Block<Paged<K>>, smem: Smem<Paged<K>>) {
        let source = |index, count| FoundTiles::<OnCache>::of(&p, index, count, K::INFO.tile_m);
        K::body(&p, source, block, smem)
    }
}
