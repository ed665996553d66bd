//! Work tiles: the queries of a thread block, their sequence and head, and the share of the visible keys that
//! the block processes. [`crate::tensors`] and [`crate::hopper::scheduler`] describe how the tensors are
//! copied.
use crate::capped::Capped;
use crate::lengths::Span;
use crate::rows::Rows;
use crate::variant::MaskFn;
use crate::variant::blocks::BlockRange;
use spec::{
    BwdHopperParams, BwdMap, BwdParams, FwdParams, HopperParams, Partials, PerHead, TileOrder, Window,
    WorkTile,
};

/// A problem as the parameters of forward kernels describe it.
pub trait Problem: Capped {
    /// Whether the kernel processes a work tile that has no sequence like any other tile.
    const DOES_PADDING: bool;
    /// The order of work tiles.
    fn order(&self) -> &TileOrder;
    /// Number of queries per head, and number of keys per head.
    fn lens(&self) -> [u32; 2];
    /// The window of the mask.
    fn window(&self) -> Window;
}
macro_rules! capped {
    ($($params:ty $(where $map:ident: $kind:ident)?),*) => {$(
        impl$(<$map: $kind>)? Capped for $params {
            #[inline(always)]
            fn scale_log2(&self) -> f32 {
                self.scale_log2
            }
            #[inline(always)]
            fn softcap(&self) -> f32 {
                self.softcap
            }
            #[inline(always)]
            fn alibi(&self) -> Option<&PerHead> {
                Some(&self.alibi)
            }
        }
    )*};
}
capped!(FwdParams, BwdParams, BwdHopperParams<M> where M: BwdMap);
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
impl<Q, K> Capped for HopperParams<Q, K> {
    #[inline(always)]
    fn scale_log2(&self) -> f32 {
        self.scale_log2
    }
    #[inline(always)]
    fn softcap(&self) -> f32 {
        self.softcap
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

/// A problem without ALiBi slopes, even if its parameters have some.
pub struct Unsloped<'p, P>(pub &'p P);

impl<P: Problem> Capped for Unsloped<'_, P> {
    #[inline(always)]
    fn scale_log2(&self) -> f32 {
        self.0.scale_log2()
    }
    #[inline(always)]
    fn softcap(&self) -> f32 {
        self.0.softcap()
    }
}
impl<P: Problem> Problem for Unsloped<'_, P> {
    const DOES_PADDING: bool = P::DOES_PADDING;
    #[inline(always)]
    fn order(&self) -> &TileOrder {
        self.0.order()
    }
    #[inline(always)]
    fn lens(&self) -> [u32; 2] {
        self.0.lens()
    }
    #[inline(always)]
    fn window(&self) -> Window {
        self.0.window()
    }
}

/// One tile of queries.
pub trait QueryTile: Copy {
    /// Whether a tile may have no keys, under any mask.
    const MAY_LACK_KEYS: bool;
    /// Whether the tile has only one split of the keys. The results are then partial results.
    const SPLIT: bool = false;

    /// The rows of the tile, with `tile_m` rows per tile.
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows;
    /// The tile's share of the key blocks that its rows see.
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range
    }
    /// Number of queries of the tile's sequence before row 0 of the tile's tensors.
    #[inline(always)]
    fn before(&self) -> u32 {
        0
    }
    /// Whether the attention sink counts for this tile. The sink counts for exactly one split of a tile's
    /// keys.
    #[inline(always)]
    fn counts_sink(&self) -> bool {
        true
    }
    /// Whether the tile may have no key block under mask `Mask`.
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
        let [q_len, k_len] = p.lens();
        Rows {
            first: self.m_block * tile_m,
            tile: tile_m,
            q_len,
            k_len,
            window: p.window(),
            of: [self.batch, self.head],
        }
    }
}

/// The index of a tile in the order of work tiles. Each use computes the tile's head again.
#[derive(Clone, Copy)]
pub struct TileNumber(pub u32);

impl QueryTile for TileNumber {
    const MAY_LACK_KEYS: bool = false;

    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        p.order().tile(self.0).rows(p, tile_m)
    }
}

/// A tile of one sequence. Its rows count from the tile's first query, and the window's shift includes the
/// queries before this query. The main loop then needs one number less.
#[derive(Clone, Copy)]
pub struct SequenceTile {
    /// The work tile, whose query block is 0.
    pub tile: WorkTile,
    /// Index of the sequence.
    pub sequence: u32,
    /// The sequence's queries from the tile's first query on.
    pub queries: Span,
    /// The keys of the sequence.
    pub keys: Span,
    /// [`Window::shift`] for rows that count from the tile's first query.
    pub shift: i32,
    /// Number of queries of the sequence before the tile.
    pub before: u32,
}

impl QueryTile for SequenceTile {
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn before(&self) -> u32 {
        self.before
    }
    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        fn q_len<P: Problem>(_: &P, queries: Span) -> u32 {
            // A tile without queries gets one row, which sees no key.
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

/// A work tile with one split of its keys.
#[derive(Clone, Copy)]
pub struct KvSplit {
    /// The work tile.
    pub tile: WorkTile,
    /// Index of the split.
    pub index: u32,
    /// The tile's query head, counted over all batches.
    pub head: u32,
    /// The memory for the results of splits.
    pub partials: Partials,
}

impl KvSplit {
    /// Split `index` of the tile that has index `number` in the order.
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
    /// Split 0 counts the sink, even if this split has no keys.
    #[inline(always)]
    fn counts_sink(&self) -> bool {
        self.index == 0
    }
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range.slice(self.index, self.partials.slices)
    }
}
