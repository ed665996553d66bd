//! What of a problem a tile is of, and how a block comes by its tiles.
use crate::mask::{BlockRange, Rows};
use spec::{HopperParams, TensorMap, WorkTile};
use tile::{Boxes, Consumer, Engine, GlobalVec, Map, MapOut, Producer, Tma};

/// A tile of queries, whose they are, and where they and their keys lie.
pub trait Portion: Copy {
    /// How the copy engine is told of queries' rows, and of those of O.
    type Queries: MapOut;
    /// The same of keys and values.
    type Keys: Map;
    /// What the kernel is told.
    type Params: AsRef<ForwardOf<Self>>;
    /// Whether its queries may have no key at all.
    const MAY_LACK_KEYS: bool;

    /// Its rows, of which a tile has `tile_m`.
    fn rows(&self, p: &Self::Params, tile_m: u32) -> Rows;
    /// Its share of the key blocks that the tile sees.
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range
    }
    /// Where query `row` of them all is.
    fn queries(&self, row: u32) -> <Self::Queries as Map>::At;
    /// Where key `row` of them all is.
    fn keys(&self, p: &Self::Params, row: u32) -> <Self::Keys as Map>::At;
    /// Log-sum-exp of all its queries.
    fn lse(&self, p: &Self::Params) -> GlobalVec;
}

/// What every kernel of these portions is told.
pub type ForwardOf<P> =
    HopperParams<<<P as Portion>::Queries as Map>::Data, <<P as Portion>::Keys as Map>::Data>;
/// What a source's kernel is told.
pub type ParamsOf<S> = <<S as Source>::Portion as Portion>::Params;
/// How the copy engine is told of a source's keys and values.
pub type KeysOf<S> = <<S as Source>::Portion as Portion>::Keys;
/// How the copy engine is told of a source's queries.
type QueriesOf<S> = <<S as Source>::Portion as Portion>::Queries;

/// A block's portions, one after the other, for both sides: those who compute need not find what the one who
/// copies has found.
pub trait Source {
    /// What they are.
    type Portion: Portion;
    /// How their queries travel.
    type By: Engine<Map = QueriesOf<Self>>;

    /// The next, for the one who copies.
    fn find(&mut self) -> Option<Self::Portion>;
    /// Starts copying its queries, which begin `at` a row.
    fn load<T: Boxes, const S: usize>(
        q: &mut Producer<T, S, Self::By>,
        portion: &Self::Portion,
        from: &T::Tensor<QueriesOf<Self>>,
        at: <QueriesOf<Self> as Map>::At,
    );
    /// The next, for those who compute and wait for its queries.
    fn receive<T: Boxes, const S: usize>(
        &mut self,
        q: &mut Consumer<T, S, Self::By>,
    ) -> Option<Self::Portion>;
}

/// A tile of a head of a batch, by row, head, batch.
impl Portion for WorkTile {
    type Queries = TensorMap;
    type Keys = TensorMap;
    type Params = HopperParams;
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
    fn keys(&self, _: &HopperParams, row: u32) -> [u32; 3] {
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
    type By = Tma<P::Queries>;

    #[inline(always)]
    fn find(&mut self) -> Option<P> {
        self.0.next()
    }

    #[inline(always)]
    fn load<T: Boxes, const S: usize>(
        q: &mut Producer<T, S, Tma<P::Queries>>,
        _: &P,
        from: &T::Tensor<P::Queries>,
        at: <P::Queries as Map>::At,
    ) {
        q.load(from, at)
    }

    #[inline(always)]
    fn receive<T: Boxes, const S: usize>(&mut self, _: &mut Consumer<T, S, Tma<P::Queries>>) -> Option<P> {
        self.0.next()
    }
}
