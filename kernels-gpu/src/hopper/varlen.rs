//! Packed sequences on Hopper. Each thread that copies finds out whose a tile is, by what the device's
//! integers say now, while others still compute the tile before; the first tells them beside the tile's
//! queries.
//! From there on a tile is one like any other: maps end where its sequence ends.
use crate::entries::RunAs;
use crate::hopper::Body;
use crate::hopper::scheduler::{MapTile, Scheduler};
use crate::lengths::{self, Span};
use crate::work::SequenceTile;
use cuda_std::math::opaque;
use spec::{HopperParams, Lse, OwnTiles, RaggedMap, Sequences, Sm90a, Varlen, VarlenParams, WorkTile};
use tile::global::GlobalVec;
use tile::pipeline::{Consumer, Producer};
use tile::tma::{BroadcastTma, MapKind, RaggedRow, TileInfo, TmaTile};
use tile::{Block, Smem};

/// Which sequence a query block is of, that one's queries, and how many of them are before the block: as many
/// as it has or more, where the block is nobody's for today's lengths.
#[inline(always)]
pub fn whose(
    sequences: &Sequences,
    m_block: u32,
    tile_m: u32,
    start: impl Fn(u32) -> u32,
    queries: impl FnOnce(u32) -> Span,
) -> (u32, Span, u32) {
    let sequence = sequences
        .find_by_halves(m_block, |sequence| sequences.begin(sequence, start(sequence), tile_m) <= m_block);
    let queries = queries(sequence);
    let begin = sequences.begin(sequence, queries.first(), tile_m);
    (sequence, queries, m_block.wrapping_sub(begin).wrapping_mul(tile_m))
}

impl SequenceTile {
    /// The tile of a head from query `before` of a sequence on, whose first query stands `aligned` keys
    /// further on than its first key. One that is nobody's has no query and no key: of what it is copied
    /// nothing exists, and of what it makes nothing is stored.
    #[inline(always)]
    pub fn new(tile: WorkTile, of: (u32, Span, u32), keys: Span, aligned: i32) -> Self {
        let (sequence, queries, before) = of;
        let [queries, keys] = match before < queries.rows() {
            true => [queries.skip(before), keys],
            false => [Span::upto(0); 2],
        };
        let tile = WorkTile { m_block: 0, ..tile };
        SequenceTile { tile, sequence, queries, keys, shift: aligned.wrapping_add(before as i32) }
    }

    /// What those who compute are told.
    #[inline(always)]
    pub fn note(&self) -> TileInfo {
        let ([first, queries], [_, keys]) = (self.queries.words(), self.keys.words());
        [first, queries, keys, self.tile.head, self.shift as u32, 0, 0, 0]
    }

    /// What a note says: all but where keys are, for those who copy none.
    #[inline(always)]
    pub fn noted([first, queries, keys, head, shift, ..]: TileInfo) -> Self {
        let queries = Span::of_words([first, queries]);
        let tile = WorkTile { m_block: 0, batch: 0, head, kv_head: 0 };
        SequenceTile { tile, sequence: 0, queries, keys: Span::upto(keys), shift: shift as i32 }
    }

    /// Where query `row` of them is.
    #[inline(always)]
    pub fn query(&self, row: u32) -> RaggedRow {
        RaggedRow::new(row, self.tile.head, self.queries.first(), self.queries.rows())
    }

    /// Log-sum-exp of its queries among `rows` of all, of the batch that their first one is of.
    #[inline(always)]
    pub fn lse(&self, lse: &Lse, rows: u32, batch: impl FnOnce(u32) -> u32) -> GlobalVec {
        let first = self.queries.first();
        let of_all = GlobalVec::new(lse, batch(first), self.tile.head, rows);
        if lse.base == 0 {
            return of_all;
        }
        // A branch, and it stays one: without it what ends a tile is one block with the next tile's head, by
        // which ptxas takes the loop for one that lanes leave one by one, and serialises products.
        of_all.part(opaque(first), self.queries.rows())
    }
}

impl MapTile for SequenceTile {
    type Queries = RaggedMap;
    type Keys = RaggedMap;
    type Params = VarlenParams<HopperParams<RaggedMap>>;

    #[inline(always)]
    fn queries(&self, row: u32) -> RaggedRow {
        self.query(row)
    }

    #[inline(always)]
    fn keys(&self, _: &VarlenParams<HopperParams<RaggedMap>>, row: u32) -> RaggedRow {
        RaggedRow::new(row, self.tile.kv_head, self.keys.first(), self.keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &VarlenParams<HopperParams<RaggedMap>>) -> GlobalVec {
        self.lse(&p.forward.lse, p.forward.q_len, |_| 0)
    }
}

/// A work tile that the one who copies finds, and tells the others of.
pub trait Found: MapTile {
    /// The tile of `tile_m` queries.
    fn find(p: &Self::Params, tile: WorkTile, tile_m: u32) -> Self;
    /// What those who compute are told.
    fn note(&self) -> TileInfo;
    /// What a note says.
    fn noted(note: TileInfo) -> Self;
}

impl Found for SequenceTile {
    #[inline(always)]
    fn find(p: &VarlenParams<HopperParams<RaggedMap>>, tile: WorkTile, tile_m: u32) -> Self {
        let VarlenParams { forward, cu_seqlens_q, .. } = p;
        let of @ (sequence, queries, _) = whose(
            &p.sequences,
            tile.m_block,
            tile_m,
            |sequence| lengths::start(cu_seqlens_q, sequence),
            |sequence| Span::load(cu_seqlens_q, sequence, forward.q_len),
        );
        let keys = Span::load(&p.cu_seqlens_k, sequence, forward.k_len).used(&p.seqused_k, sequence);
        let aligned = (keys.rows() as i32 - queries.rows() as i32) * p.bottom_right as i32;
        Self::new(tile, of, keys, aligned)
    }

    #[inline(always)]
    fn note(&self) -> TileInfo {
        self.note()
    }

    #[inline(always)]
    fn noted(note: TileInfo) -> Self {
        Self::noted(note)
    }
}

/// A block's tiles, of which some are nobody's.
pub struct VarlenScheduler<'p, T: Found> {
    p: &'p T::Params,
    tiles: OwnTiles,
    tile_m: u32,
}

impl<'p, T: Found> VarlenScheduler<'p, T> {
    /// Those of block `index` of `count`.
    #[inline(always)]
    pub fn of(p: &'p T::Params, index: u32, count: u32, tile_m: u32) -> Self {
        VarlenScheduler { p, tiles: p.as_ref().rounds.of(index, count), tile_m }
    }
}

impl<T: Found> Scheduler for VarlenScheduler<'_, T> {
    type Tile = T;
    type By = BroadcastTma<T::Queries>;

    #[inline(always)]
    fn find(&mut self) -> Option<T> {
        self.tiles.next().map(|tile| T::find(self.p, tile, self.tile_m))
    }

    #[inline(always)]
    fn load<B: TmaTile, const S: usize>(
        q: &mut Producer<B, S, BroadcastTma<T::Queries>>,
        tile: &T,
        from: &B::Tensor<T::Queries>,
        at: <T::Queries as MapKind>::At,
    ) {
        q.load(tile.note(), from, at)
    }

    #[inline(always)]
    fn receive<B: TmaTile, const S: usize>(
        &mut self,
        q: &mut Consumer<B, S, BroadcastTma<T::Queries>>,
    ) -> Option<T> {
        self.tiles.next().map(|_| T::noted(q.info()))
    }
}

impl<K: Body> RunAs<Varlen<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: VarlenParams<HopperParams<RaggedMap>>, block: Block<Varlen<K>>, smem: Smem<Varlen<K>>) {
        let source = |index, count| VarlenScheduler::<SequenceTile>::of(&p, index, count, K::INFO.tile_m);
        K::body(&p, source, block, smem)
    }
}
