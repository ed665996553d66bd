//! Packed sequences on Hopper. The one thread that copies finds out whose a tile is, by what the device's
//! integers say now, while others still compute the tile before; it tells them beside the tile's queries.
//! From there on a tile is one like any other: maps end where its sequence ends.
use crate::entries::Run;
use crate::hopper::Body;
use crate::hopper::portion::{Portion, Source};
use crate::lengths::{self, Span};
use crate::mask::Rows;
use cuda_std::math::opaque;
use spec::{HopperPacked, HopperPackedParams, HopperParams, OwnTiles, RaggedMap, Window, WorkTile};
use tile::{Block, Boxes, Consumer, GlobalVec, Note, Noted, Producer, RowOfSequence, Smem};

/// A tile of one sequence, all of it: as if the sequence began with it, and its window stood so much further
/// on. That is a number less to keep in the main loop.
#[derive(Clone, Copy)]
pub struct OfSequence {
    head: u32,
    kv_head: u32,
    /// From the tile on.
    queries: Span,
    keys: Span,
    /// As [`Window::shift`].
    shift: i32,
}

impl OfSequence {
    /// The tile of `tile_m` queries. One that is nobody's for today's lengths has no query and no key: of
    /// what it is copied nothing exists, and of what it makes nothing is stored.
    #[inline(always)]
    fn find(p: &HopperPackedParams, tile: WorkTile, tile_m: u32) -> Self {
        let HopperPackedParams { forward, sequences, .. } = p;
        let begin = |sequence, start| sequences.begin(sequence, start, tile_m);
        let sequence = sequences.find_by_halves(tile.m_block, |sequence| {
            begin(sequence, lengths::start(&p.cu_seqlens_q, sequence)) <= tile.m_block
        });
        let queries = Span::load(&p.cu_seqlens_q, sequence, forward.q_len);
        let before = tile.m_block.wrapping_sub(begin(sequence, queries.first())).wrapping_mul(tile_m);
        let keys = Span::load(&p.cu_seqlens_k, sequence, forward.k_len).used(&p.seqused_k, sequence);
        let aligned = (keys.rows() as i32 - queries.rows() as i32) * p.bottom_right as i32;
        let [queries, keys] = match before < queries.rows() {
            true => [queries.skip(before), keys],
            false => [Span::upto(0); 2],
        };
        let WorkTile { head, kv_head, .. } = tile;
        OfSequence { head, kv_head, queries, keys, shift: aligned.wrapping_add(before as i32) }
    }

    /// What those who compute are told.
    #[inline(always)]
    fn note(&self) -> Note {
        let ([first, queries], [_, keys]) = (self.queries.words(), self.keys.words());
        [first, queries, keys, self.head, self.shift as u32, 0, 0, 0]
    }

    /// What a note says: all but where keys are, for those who copy none.
    #[inline(always)]
    fn noted([first, queries, keys, head, shift, ..]: Note) -> Self {
        let queries = Span::of_words([first, queries]);
        OfSequence { head, kv_head: 0, queries, keys: Span::upto(keys), shift: shift as i32 }
    }
}

impl Portion for OfSequence {
    type Map = RaggedMap;
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn rows(&self, p: &HopperParams<RaggedMap>, tile_m: u32) -> Rows {
        Rows {
            first: 0,
            tile: tile_m,
            // Of none the first, which sees no key either.
            q_len: self.queries.rows().max(1),
            k_len: self.keys.rows(),
            window: Window { shift: self.shift, ..p.window },
            of: [0, self.head],
        }
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> RowOfSequence {
        RowOfSequence::new(row, self.head, self.queries.first(), self.queries.rows())
    }

    #[inline(always)]
    fn keys(&self, row: u32) -> RowOfSequence {
        RowOfSequence::new(row, self.kv_head, self.keys.first(), self.keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &HopperParams<RaggedMap>) -> GlobalVec {
        let of_all = GlobalVec::of(&p.lse, 0, self.head, p.q_len);
        if p.lse.base == 0 {
            return of_all;
        }
        // A branch, and it stays one: without it what ends a tile is one block with the next tile's head, by
        // which ptxas takes the loop for one that lanes leave one by one, and serialises products.
        of_all.part(opaque(self.queries.first()), self.queries.rows())
    }
}

/// A block's tiles, of which some are nobody's.
struct Found<'p> {
    p: &'p HopperPackedParams,
    tiles: OwnTiles,
    tile_m: u32,
}

impl Source for Found<'_> {
    type Portion = OfSequence;
    type By = Noted;

    #[inline(always)]
    fn find(&mut self) -> Option<OfSequence> {
        self.tiles.next().map(|tile| OfSequence::find(self.p, tile, self.tile_m))
    }

    #[inline(always)]
    fn load<T: Boxes, const S: usize>(
        q: &mut Producer<T, S, Noted>,
        portion: &OfSequence,
        from: &T::Tensor<RaggedMap>,
        at: RowOfSequence,
    ) {
        q.load(portion.note(), from, at)
    }

    #[inline(always)]
    fn receive<T: Boxes, const S: usize>(&mut self, q: &mut Consumer<T, S, Noted>) -> Option<OfSequence> {
        self.tiles.next().map(|_| OfSequence::noted(q.note()))
    }
}

impl<K: Body> Run for HopperPacked<K> {
    #[inline(always)]
    fn run(p: HopperPackedParams, block: Block<Self>, smem: Smem<Self>) {
        let source = |index, count| {
            let tiles = p.forward.rounds.of(index, count);
            Found { p: &p, tiles, tile_m: K::TILE_M }
        };
        K::body(&p.forward, source, block, smem)
    }
}
