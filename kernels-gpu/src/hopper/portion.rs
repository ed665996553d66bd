//! What of a problem a tile is of, and how a block comes by its tiles.
use crate::mask::{BlockRange, Rows};
use spec::{HopperParams, TensorMap, WorkTile};
use tile::{Boxes, Consumer, Engine, GlobalVec, Map, Producer, Tma};

/// A tile of queries, whose they are, and where they and their keys lie.
pub trait Portion: Copy {
    /// How the copy engine is told of rows.
    type Map: Map;
    /// Whether its queries may have no key at all.
    const MAY_LACK_KEYS: bool;

    /// Its rows, of which a tile has `tile_m`.
    fn rows(&self, p: &HopperParams<Self::Map>, tile_m: u32) -> Rows;
    /// Its share of the key blocks that the tile sees.
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range
    }
    /// Where query `row` of them all is.
    fn queries(&self, row: u32) -> <Self::Map as Map>::At;
    /// Where key `row` of them all is.
    fn keys(&self, row: u32) -> <Self::Map as Map>::At;
    /// Log-sum-exp of all its queries.
    fn lse(&self, p: &HopperParams<Self::Map>) -> GlobalVec;
}

/// The kind of map of a source's portions.
pub type MapOf<S> = <<S as Source>::Portion as Portion>::Map;

/// A block's portions, one after the other, for both sides: those who compute need not find what the one who
/// copies has found.
pub trait Source {
    /// What they are.
    type Portion: Portion;
    /// How their queries travel.
    type By: Engine;

    /// The next, for the one who copies.
    fn find(&mut self) -> Option<Self::Portion>;
    /// Starts copying its queries, which begin `at` a row.
    fn load<T: Boxes, const S: usize>(
        q: &mut Producer<T, S, Self::By>,
        portion: &Self::Portion,
        from: &T::Tensor<MapOf<Self>>,
        at: <MapOf<Self> as Map>::At,
    );
    /// The next, for those who compute and wait for its queries.
    fn receive<T: Boxes, const S: usize>(
        &mut self,
        q: &mut Consumer<T, S, Self::By>,
    ) -> Option<Self::Portion>;
}

/// A tile of a head of a batch, by row, head, batch.
impl Portion for WorkTile {
    type Map = TensorMap;
    const MAY_LACK_KEYS: bool = false;

    #[inline(always)]
    fn rows(&self, p: &HopperParams, tile_m: u32) -> Rows {
        Rows {
            first: self.m_block * tile_m,
            tile: tile_m,
            q_len: p.q_len,
            k_len: p.k_len,
            window: p.window,
            of: [self.batch, self.head],
        }
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> [u32; 3] {
        [row, self.head, self.batch]
    }

    #[inline(always)]
    fn keys(&self, row: u32) -> [u32; 3] {
        [row, self.kv_head, self.batch]
    }

    #[inline(always)]
    fn lse(&self, p: &HopperParams) -> GlobalVec {
        GlobalVec::of(&p.lse, self.batch, self.head, p.q_len)
    }
}

/// Portions that follow from parameters alone: everybody counts for himself.
pub struct Own<I>(pub I);

impl<P: Portion, I: Iterator<Item = P>> Source for Own<I> {
    type Portion = P;
    type By = Tma;

    #[inline(always)]
    fn find(&mut self) -> Option<P> {
        self.0.next()
    }

    #[inline(always)]
    fn load<T: Boxes, const S: usize>(
        q: &mut Producer<T, S, Tma>,
        _: &P,
        from: &T::Tensor<P::Map>,
        at: <P::Map as Map>::At,
    ) {
        q.load(from, at)
    }

    #[inline(always)]
    fn receive<T: Boxes, const S: usize>(&mut self, _: &mut Consumer<T, S, Tma>) -> Option<P> {
        self.0.next()
    }
}
