//! Prefill on a paged KV cache, on Hopper. The difference from [`super::varlen`] is the producer: its threads
//! look up the pages of keys and values, and copy the pages box by box.
use crate::entries::RunAs;
use crate::hopper::scheduler::MapTile;
use crate::hopper::varlen::{Found, VarlenScheduler, sequence_of};
use crate::hopper::{Body, HopperKernel};
use crate::lengths::{self, Span};
use crate::rows::Rows;
use crate::work::{Problem, QueryTile, SequenceTile};
use attention_tile::{InPages, PagedRow};
use spec::{
    HopperPagedParams, HopperParams, Kernel, MaskMarker, Paged, PagedMap, RaggedMap, Sm90a, Told,
    VariantParams, WorkTile,
};
use tile::global::GlobalVec;
use tile::tma::{RaggedRow, TileInfo};
use tile::{Block, Smem};

/// A tile of one sequence, whose keys and values lie in a KV cache.
#[derive(Clone, Copy)]
struct CacheTile(SequenceTile);

impl QueryTile for CacheTile {
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn before(&self) -> u32 {
        self.0.before()
    }
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
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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
        let (packed, least) = (cu_seqlens_q.count > 0, p.many.least.get());
        let of @ (sequence, queries, _) = sequence_of(
            &p.sequences,
            tile.m_block,
            tile_m,
            |sequence, start| match least {
                1 => p.sequences.begin(sequence, start, tile_m),
                _ => p.many.begin(sequence, start, tile_m),
            },
            |sequence| lengths::start(cu_seqlens_q, sequence),
            |sequence| match packed {
                // Decode takes the sequences of few queries.
                true => {
                    let all = Span::load(cu_seqlens_q, sequence, forward.q_len);
                    all.many(least - 1).unwrap_or(Span::upto(0))
                }
                false => Span::of_words([sequence * each.get(), each.get()]),
            },
        );
        let keys = Span::upto(lengths::length(&p.lengths, sequence, forward.k_len));
        let aligned = (keys.rows() as i32 - queries.rows() as i32).wrapping_add(forward.window.shift);
        CacheTile(SequenceTile::new(tile, of, keys, aligned))
    }

    #[inline(always)]
    fn info(&self, told: bool) -> TileInfo {
        self.0.info(told)
    }

    #[inline(always)]
    fn of_info(info: TileInfo, told: bool) -> Self {
        CacheTile(SequenceTile::of_info(info, told))
    }
}

impl<K: Body> HopperKernel for Paged<K> {
    type Forward = HopperParams<RaggedMap, PagedMap>;
    #[inline(always)]
    fn enter<C: Kernel<Params: AsRef<HopperParams<RaggedMap, PagedMap>> + Told<VariantParams<K>>>>(
        p: &HopperPagedParams,
        variant: &VariantParams<K>,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        let source = |index, count| VarlenScheduler::<CacheTile, K>::of(p, index, count);
        K::body(p, variant, source, block, smem)
    }
}

impl<K: Body<Mask: MaskMarker<Params = ()>>> RunAs<Paged<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: HopperPagedParams, block: Block<Paged<K>>, smem: Smem<Paged<K>>) {
        Paged::<K>::enter(&p, &(), block, smem)
    }
}
