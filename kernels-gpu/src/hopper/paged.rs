//! Prefill on a paged KV cache, on Hopper. The difference from [`super::varlen`] is the producer: its threads
//! look up the pages of keys and values, and copy the pages box by box.
use crate::capped::factor;
use crate::entries::RunAs;
use crate::hopper::scheduler::MapTile;
use crate::hopper::varlen::{Found, VarlenScheduler};
use crate::hopper::{Body, HopperKernel};
use crate::lengths::{self, Span};
use crate::rows::Rows;
use crate::work::{Problem, QueryTile, SequenceTile};
use attention_tile::{InPages, LoadScales, PagedRow, head_of};
use core::marker::PhantomData;
use spec::{
    HasVariant, HopperPagedParams, HopperParams, Kernel, MaskKind, MaskMarker, Paged, PagedMap, RaggedMap,
    Sm90a, VariantParams, WorkTile,
};
use tile::global::GlobalVec;
use tile::tma::{RaggedRow, TileInfo};
use tile::{Block, Smem, Warp};

/// A tile of one sequence, whose keys and values lie in a KV cache with scales `S`.
#[derive(Clone, Copy)]
pub struct CacheTile<S> {
    /// The tile, with its rows of O and LSE as queries.
    pub of: SequenceTile,
    /// Number of rows between the tile's first row of Q and its first row of O. Only the producer knows it.
    apart: u32,
    /// See [`MapTile::factor`] and [`MapTile::of_values`].
    factors: [f32; 2],
    kind: PhantomData<S>,
}

impl<S: LoadScales> QueryTile for CacheTile<S> {
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

impl<S: LoadScales> MapTile for CacheTile<S> {
    type Queries = RaggedMap;
    type Keys = InPages;
    type Params = HopperPagedParams<S>;

    #[inline(always)]
    fn head(&self) -> u32 {
        self.of.head()
    }
    #[inline(always)]
    fn with_head(self, head: u32) -> Self {
        CacheTile { of: self.of.with_head(head), ..self }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> RaggedRow {
        let SequenceTile { tile, queries, .. } = self.of;
        RaggedRow::new(row, tile.head, queries.first().wrapping_sub(self.apart), queries.rows())
    }

    #[inline(always)]
    fn keys(&self, p: &HopperPagedParams<S>, row: u32) -> PagedRow {
        let SequenceTile { tile, sequence, keys, .. } = self.of;
        // A sequence without keys may be padding, whose row of the block table may end behind the table.
        let sequence = if keys.rows() == 0 { 0 } else { sequence };
        PagedRow::new(&p.cache, p.boxes, sequence, tile.kv_head, row, keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &HopperPagedParams<S>) -> GlobalVec {
        self.of.lse(&p.forward.lse, p.forward.q_len, |first| p.queries.div_rem(first).0)
    }

    #[inline(always)]
    fn in_warp(self, p: &HopperPagedParams<S>, warp: Warp) -> Self {
        let of = self.of.uniform(warp);
        let head = head_of(of.sequence, of.tile.kv_head, &warp);
        let [k, v] = [0, 1].map(|which| p.scales.load(which, head));
        let factors = [factor(&p.forward, k), v].map(|x| f32::from_bits(warp.uniform(x.to_bits())));
        CacheTile { of, factors, ..self }
    }

    const SCALED: bool = S::ARE_SOME;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.factors[0]
    }
    #[inline(always)]
    fn of_values(&self) -> f32 {
        self.factors[1]
    }
}

impl<S> CacheTile<S> {
    /// A tile without queries.
    #[inline(always)]
    fn none(tile: WorkTile) -> Self {
        let of = SequenceTile::new(tile, (0, Span::upto(0), 0), Span::upto(0), 0);
        CacheTile { of, apart: 0, factors: [1.0; 2], kind: PhantomData }
    }
}

impl<S: LoadScales> Found for CacheTile<S> {
    #[inline(always)]
    fn is_mixed(p: &HopperPagedParams<S>) -> bool {
        p.begins.count() > 0
    }

    #[inline(always)]
    fn find(p: &HopperPagedParams<S>, tile: WorkTile, tile_m: u32) -> Self {
        let HopperPagedParams { forward, cu_seqlens_q, queries: each, .. } = p;
        let is_mixed = Self::is_mixed(p);
        let m_block = match is_mixed {
            true => lengths::numbered(&p.begins, &p.sequences, p.forward.order().m_blocks - tile.m_block),
            false => Some(tile.m_block),
        };
        let Some(m_block) = m_block else { return Self::none(tile) };
        let begin = |sequence| match is_mixed {
            true => lengths::start(&p.begins, sequence),
            false => p.sequences.begin(sequence, lengths::start(cu_seqlens_q, sequence), tile_m),
        };
        let sequence = p.sequences.find_by_halves(m_block, |sequence| begin(sequence) <= m_block);
        let queries = match cu_seqlens_q.count() {
            0 => Span::of_words([sequence * each.get(), each.get()]),
            _ => Span::load(cu_seqlens_q, sequence, forward.q_len),
        };
        let before = m_block.wrapping_sub(begin(sequence)).wrapping_mul(tile_m);
        let of = (sequence, queries, before);
        let keys = Span::upto(lengths::length(&p.lengths, sequence, forward.k_len));
        let aligned = (keys.rows() as i32 - queries.rows() as i32).wrapping_add(forward.window.shift);
        let apart = sequence.wrapping_mul(p.shared_queries);
        let of = SequenceTile::new(tile, of, keys, aligned);
        CacheTile { of, apart, ..Self::none(tile) }
    }

    /// Factors take the place of `before`, from which consumers compute `shift`, `queries` and `tile` of a
    /// sequence. The masks and scores of `reads_no_sequence` read none.
    #[inline(always)]
    fn info(&self, with_variant: bool) -> TileInfo {
        let info @ [a, b, c, d, e, f, _, _] = self.of.info(with_variant);
        match Self::SCALED {
            true => {
                let [k, v] = self.factors.map(f32::to_bits);
                [a, b, c, d, e, f, k, v]
            }
            false => info,
        }
    }

    #[inline(always)]
    fn of_info(info: TileInfo, with_variant: bool) -> Self {
        let factors = if Self::SCALED { [info[6], info[7]].map(f32::from_bits) } else { [1.0; 2] };
        CacheTile { of: SequenceTile::of_info(info, with_variant), apart: 0, factors, kind: PhantomData }
    }
}

/// Whether the mask and its scores read none of a sequence's numbers that [`CacheTile`] replaces by factors.
const fn reads_no_sequence<Mask: MaskMarker>() -> bool {
    let scores = Mask::SCORES;
    matches!(Mask::KIND, MaskKind::Full | MaskKind::Causal | MaskKind::Local)
        && !(scores.own || scores.alibi || scores.bias.is_some())
}

impl<K: Body<Scales: LoadScales>> HopperKernel for Paged<K> {
    type Forward = HopperParams<RaggedMap, PagedMap>;
    #[inline(always)]
    fn enter<C: Kernel<Params: AsRef<HopperParams<RaggedMap, PagedMap>> + HasVariant<VariantParams<K>>>>(
        p: &HopperPagedParams<K::Scales>,
        variant: &VariantParams<K>,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        const {
            assert!(
                !K::Scales::ARE_SOME || reads_no_sequence::<K::Mask>(),
                "Hopper's kernels on caches of eight bits do not know a sequence's `shift`, `queries` and \
                 `tile`, which masks and scores of your own may read: `Paged<FwdDequant<..>>` knows them"
            )
        }
        let source = |index, count| VarlenScheduler::<CacheTile<K::Scales>, K>::of(p, index, count);
        K::body(p, variant, source, block, smem)
    }
}

impl<K: Body<Mask: MaskMarker<Params = ()>, Scales: LoadScales>> RunAs<Paged<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: HopperPagedParams<K::Scales>, block: Block<Paged<K>>, smem: Smem<Paged<K>>) {
        Paged::<K>::enter(&p, &(), block, smem)
    }
}
