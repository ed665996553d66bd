//! Work tiles: which queries a thread block has, whose they are, and its share of the keys that they see. How
//! tensors travel is not known here: [`crate::tensors`] and [`crate::hopper::scheduler`] say.
use crate::lengths::Span;
use crate::mask::{BlockRange, MaskFn, Rows};
use spec::{FwdParams, HopperParams, Partials, TileOrder, Window, WorkTile};

/// What every forward is told of its problem.
pub trait Problem {
    /// Whether a work tile that is no sequence's is done as any other.
    const DOES_PADDING: bool;
    /// The order of work tiles.
    fn order(&self) -> &TileOrder;
    /// Queries, and keys, of a head.
    fn lens(&self) -> [u32; 2];
    /// The mask's parameters.
    fn window(&self) -> Window;
}
impl Problem for FwdParams {
    const DOES_PADDING: bool = false;
    #[inline(always)]
    fn order(&self) -> &TileOrder {
        &self.order
    }
    #[inline(always)]
    fn lens(&self) -> [u32; 2] {
        [self.q.rows, self.k.rows]
    }
    #[inline(always)]
    fn window(&self) -> Window {
        self.window
    }
}
impl<Q, K> Problem for HopperParams<Q, K> {
    const DOES_PADDING: bool = true;
    #[inline(always)]
    fn order(&self) -> &TileOrder {
        &self.rounds.order
    }
    #[inline(always)]
    fn lens(&self) -> [u32; 2] {
        [self.q_len, self.k_len]
    }
    #[inline(always)]
    fn window(&self) -> Window {
        self.window
    }
}

/// One tile of queries.
pub trait QueryTile: Copy {
    /// Whether it may have no key at all, whatever the mask.
    const MAY_LACK_KEYS: bool;
    /// Whether it has a split of the keys alone, so that its results are partial ones.
    const SPLIT: bool = false;

    /// Its rows, of which a tile has `tile_m`.
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows;
    /// Its share of the key blocks that the rows see.
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range
    }
    /// Whether it may have no key block under mask `Mask`.
    #[inline(always)]
    fn may_see_nothing<Mask: MaskFn>() -> bool {
        !Mask::SEES_ALL || Self::MAY_LACK_KEYS
    }
}

/// A tile of a head of a batch.
impl QueryTile for WorkTile {
    const MAY_LACK_KEYS: bool = false;

    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        let ([q_len, k_len], window) = (p.lens(), p.window());
        Rows { first: self.m_block * tile_m, tile: tile_m, q_len, k_len, window, of: [self.batch, self.head] }
    }
}

/// The tile that is so many-th in order. Which head it is of is computed where it is asked for.
#[derive(Clone, Copy)]
pub struct TileNumber(pub u32);

impl QueryTile for TileNumber {
    const MAY_LACK_KEYS: bool = false;

    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        p.order().tile(self.0).rows(p, tile_m)
    }
}

/// A tile of one sequence: as if the sequence began with it, and its window stood so much further on. That is
/// a number less to keep in the main loop.
#[derive(Clone, Copy)]
pub struct SequenceTile {
    /// The tile: the first.
    pub tile: WorkTile,
    /// Which sequence it is.
    pub sequence: u32,
    /// Queries of the sequence from the tile on.
    pub queries: Span,
    /// Keys of the sequence.
    pub keys: Span,
    /// As [`Window::shift`], from the tile on.
    pub shift: i32,
}

impl QueryTile for SequenceTile {
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        fn q_len<P: Problem>(_: &P, queries: Span) -> u32 {
            // Of none the first, which sees no key either.
            if P::DOES_PADDING { queries.rows().max(1) } else { queries.rows() }
        }
        Rows {
            first: 0,
            tile: tile_m,
            q_len: q_len(p, self.queries),
            k_len: self.keys.rows(),
            window: Window { shift: self.shift, ..p.window() },
            of: [self.sequence, self.tile.head],
        }
    }
}

/// A split of a tile's keys.
#[derive(Clone, Copy)]
pub struct KvSplit {
    /// The tile.
    pub tile: WorkTile,
    /// Which split it is.
    pub index: u32,
    /// Which of all batches' query heads the tile is of.
    pub head: u32,
    /// Where splits leave their results.
    pub partials: Partials,
}

impl KvSplit {
    /// Split `index` of the tile that is `number`-th in order.
    #[inline(always)]
    pub fn new(order: &TileOrder, partials: Partials, [number, index]: [u32; 2]) -> Self {
        let tile = order.tile(number);
        KvSplit { tile, index, head: tile.batch * order.heads.get() + tile.head, partials }
    }
}

impl QueryTile for KvSplit {
    const MAY_LACK_KEYS: bool = true;
    const SPLIT: bool = true;

    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        self.tile.rows(p, tile_m)
    }
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range.slice(self.index, self.partials.slices)
    }
}
