//! Packed sequences on Hopper. Each thread that copies finds out whose a tile is, by what the device's
//! integers say now, while others still compute the tile before; the first tells them beside the tile's
//! queries.
//! From there on a tile is one like any other: maps end where its sequence ends.
use crate::entries::RunAs;
use crate::hopper::Body;
use crate::hopper::portion::{Portion, Source};
use crate::lengths::{self, Span};
use crate::mask::Rows;
use cuda_std::math::opaque;
use spec::{
    HopperParams, Lse, OwnTiles, RaggedMap, Sequences, Sm90a, Varlen, VarlenParams, Window, WorkTile,
};
use tile::{Block, Boxes, Consumer, GlobalVec, Map, Note, Noted, Producer, RowOfSequence, Smem};

/// A tile of one sequence, all of it: as if the sequence began with it, and its window stood so much further
/// on. That is a number less to keep in the main loop.
#[derive(Clone, Copy)]
pub struct OfSequence {
    head: u32,
    /// Which keys' head.
    pub kv_head: u32,
    /// From the tile on.
    pub queries: Span,
    /// Keys of the sequence.
    pub keys: Span,
    /// As [`Window::shift`].
    shift: i32,
}

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

impl OfSequence {
    /// The tile of a head from query `before` of a sequence on, whose first query stands `aligned` keys
    /// further on than its first key. One that is nobody's has no query and no key: of what it is copied
    /// nothing exists, and of what it makes nothing is stored.
    #[inline(always)]
    pub fn new(tile: WorkTile, before: u32, queries: Span, keys: Span, aligned: i32) -> Self {
        let [queries, keys] = match before < queries.rows() {
            true => [queries.skip(before), keys],
            false => [Span::upto(0); 2],
        };
        let WorkTile { head, kv_head, .. } = tile;
        OfSequence { head, kv_head, queries, keys, shift: aligned.wrapping_add(before as i32) }
    }

    /// What those who compute are told.
    #[inline(always)]
    pub fn note(&self) -> Note {
        let ([first, queries], [_, keys]) = (self.queries.words(), self.keys.words());
        [first, queries, keys, self.head, self.shift as u32, 0, 0, 0]
    }

    /// What a note says: all but where keys are, for those who copy none.
    #[inline(always)]
    pub fn noted([first, queries, keys, head, shift, ..]: Note) -> Self {
        let queries = Span::of_words([first, queries]);
        OfSequence { head, kv_head: 0, queries, keys: Span::upto(keys), shift: shift as i32 }
    }

    /// Its rows, of which a tile has `tile_m`.
    #[inline(always)]
    pub fn rows(&self, window: Window, tile_m: u32) -> Rows {
        Rows {
            first: 0,
            tile: tile_m,
            // Of none the first, which sees no key either.
            q_len: self.queries.rows().max(1),
            k_len: self.keys.rows(),
            window: Window { shift: self.shift, ..window },
            of: [0, self.head],
        }
    }

    /// Where query `row` of them is.
    #[inline(always)]
    pub fn query(&self, row: u32) -> RowOfSequence {
        RowOfSequence::new(row, self.head, self.queries.first(), self.queries.rows())
    }

    /// Log-sum-exp of its queries among `rows` of all, of the batch that their first one is of.
    #[inline(always)]
    pub fn lse(&self, lse: &Lse, rows: u32, batch: impl FnOnce(u32) -> u32) -> GlobalVec {
        let first = self.queries.first();
        let of_all = GlobalVec::of(lse, batch(first), self.head, rows);
        if lse.base == 0 {
            return of_all;
        }
        // A branch, and it stays one: without it what ends a tile is one block with the next tile's head, by
        // which ptxas takes the loop for one that lanes leave one by one, and serialises products.
        of_all.part(opaque(first), self.queries.rows())
    }
}

impl Portion for OfSequence {
    type Queries = RaggedMap;
    type Keys = RaggedMap;
    type Params = VarlenParams<HopperParams<RaggedMap>>;
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn rows(&self, p: &VarlenParams<HopperParams<RaggedMap>>, tile_m: u32) -> Rows {
        self.rows(p.forward.window, tile_m)
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> RowOfSequence {
        self.query(row)
    }

    #[inline(always)]
    fn keys(&self, _: &VarlenParams<HopperParams<RaggedMap>>, row: u32) -> RowOfSequence {
        RowOfSequence::new(row, self.kv_head, self.keys.first(), self.keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &VarlenParams<HopperParams<RaggedMap>>) -> GlobalVec {
        self.lse(&p.forward.lse, p.forward.q_len, |_| 0)
    }
}

/// A portion that the one who copies finds, and tells the others of.
pub trait Found: Portion {
    /// The tile of `tile_m` queries.
    fn find(p: &Self::Params, tile: WorkTile, tile_m: u32) -> Self;
    /// What those who compute are told.
    fn note(&self) -> Note;
    /// What a note says.
    fn noted(note: Note) -> Self;
}

impl Found for OfSequence {
    #[inline(always)]
    fn find(p: &VarlenParams<HopperParams<RaggedMap>>, tile: WorkTile, tile_m: u32) -> Self {
        let VarlenParams { forward, cu_seqlens_q, .. } = p;
        let (sequence, queries, before) = whose(
            &p.sequences,
            tile.m_block,
            tile_m,
            |sequence| lengths::start(cu_seqlens_q, sequence),
            |sequence| Span::load(cu_seqlens_q, sequence, forward.q_len),
        );
        let keys = Span::load(&p.cu_seqlens_k, sequence, forward.k_len).used(&p.seqused_k, sequence);
        let aligned = (keys.rows() as i32 - queries.rows() as i32) * p.bottom_right as i32;
        Self::new(tile, before, queries, keys, aligned)
    }

    #[inline(always)]
    fn note(&self) -> Note {
        self.note()
    }

    #[inline(always)]
    fn noted(note: Note) -> Self {
        Self::noted(note)
    }
}

/// A block's tiles, of which some are nobody's.
pub struct FoundTiles<'p, T: Found> {
    p: &'p T::Params,
    tiles: OwnTiles,
    tile_m: u32,
}

impl<'p, T: Found> FoundTiles<'p, T> {
    /// Those of block `index` of `count`.
    #[inline(always)]
    pub fn of(p: &'p T::Params, index: u32, count: u32, tile_m: u32) -> Self {
        FoundTiles { p, tiles: p.as_ref().rounds.of(index, count), tile_m }
    }
}

impl<T: Found> Source for FoundTiles<'_, T> {
    type Portion = T;
    type By = Noted<T::Queries>;

    #[inline(always)]
    fn find(&mut self) -> Option<T> {
        self.tiles.next().map(|tile| T::find(self.p, tile, self.tile_m))
    }

    #[inline(always)]
    fn load<B: Boxes, const S: usize>(
        q: &mut Producer<B, S, Noted<T::Queries>>,
        portion: &T,
        from: &B::Tensor<T::Queries>,
        at: <T::Queries as Map>::At,
    ) {
        q.load(portion.note(), from, at)
    }

    #[inline(always)]
    fn receive<B: Boxes, const S: usize>(&mut self, q: &mut Consumer<B, S, Noted<T::Queries>>) -> Option<T> {
        self.tiles.next().map(|_| T::noted(q.note()))
    }
}

impl<K: Body> RunAs<Varlen<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: VarlenParams<HopperParams<RaggedMap>>, block: Block<Varlen<K>>, smem: Smem<Varlen<K>>) {
        let source = |index, count| FoundTiles::<OfSequence>::of(&p, index, count, K::INFO.tile_m);
        K::body(&p, source, block, smem)
    }
}
