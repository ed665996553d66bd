//! What of a problem a tile is of, and how a block comes by its tiles.
use crate::work::QueryTile;
use spec::{HopperParams, TensorMap, WorkTile};
use tile::global::GlobalVec;
use tile::pipeline::{Consumer, Producer};
use tile::tma::{MapKind, StoreMapKind, Tma, TmaTile, TmaTransport};

/// A tile whose queries, keys and values are copied through tensor maps.
pub trait MapTile: QueryTile {
    /// How TMA is told of queries' rows, and of those of O.
    type Queries: StoreMapKind;
    /// The same of keys and values.
    type Keys: MapKind;
    /// What the kernel is told.
    type Params: AsRef<ForwardOf<Self>>;

    /// Where query `row` of them all is.
    fn queries(&self, row: u32) -> <Self::Queries as MapKind>::At;
    /// Where key `row` of them all is.
    fn keys(&self, p: &Self::Params, row: u32) -> <Self::Keys as MapKind>::At;
    /// Log-sum-exp of all its queries.
    fn lse(&self, p: &Self::Params) -> GlobalVec;
}

/// What every kernel of these work tiles is told.
pub type ForwardOf<P> =
    HopperParams<<<P as MapTile>::Queries as MapKind>::Data, <<P as MapTile>::Keys as MapKind>::Data>;
/// What a source's kernel is told.
pub type ParamsOf<S> = <<S as Scheduler>::Tile as MapTile>::Params;
/// How the copy engine is told of a source's keys and values.
pub type KeysOf<S> = <<S as Scheduler>::Tile as MapTile>::Keys;
/// How the copy engine is told of a source's queries.
type QueriesOf<S> = <<S as Scheduler>::Tile as MapTile>::Queries;

/// A block's work tiles, one after the other, for producer and consumers: what the producer warp has found
/// the consumer warps need not find.
pub trait Scheduler {
    /// What they are.
    type Tile: MapTile;
    /// How their queries travel.
    type By: TmaTransport<MapKind = QueriesOf<Self>>;

    /// The next, for the one who copies.
    fn find(&mut self) -> Option<Self::Tile>;
    /// Starts copying its queries, which begin `at` a row.
    fn load<T: TmaTile, const S: usize>(
        q: &mut Producer<T, S, Self::By>,
        tile: &Self::Tile,
        from: &T::Tensor<QueriesOf<Self>>,
        at: <QueriesOf<Self> as MapKind>::At,
    );
    /// The next, for those who compute and wait for its queries.
    fn receive<T: TmaTile, const S: usize>(&mut self, q: &mut Consumer<T, S, Self::By>)
    -> Option<Self::Tile>;
}

/// A tile of a head of a batch, by row, head, batch.
impl MapTile for WorkTile {
    type Queries = TensorMap;
    type Keys = TensorMap;
    type Params = HopperParams;
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
        GlobalVec::new(&p.lse, self.batch, self.head, p.q_len)
    }
}

/// Work tiles that follow from parameters alone: everybody counts for himself.
pub struct StaticScheduler<I>(pub I);

impl<P: MapTile, I: Iterator<Item = P>> Scheduler for StaticScheduler<I> {
    type Tile = P;
    type By = Tma<P::Queries>;

    #[inline(always)]
    fn find(&mut self) -> Option<P> {
        self.0.next()
    }

    #[inline(always)]
    fn load<T: TmaTile, const S: usize>(
        q: &mut Producer<T, S, Tma<P::Queries>>,
        _: &P,
        from: &T::Tensor<P::Queries>,
        at: <P::Queries as MapKind>::At,
    ) {
        q.load(from, at)
    }

    #[inline(always)]
    fn receive<T: TmaTile, const S: usize>(&mut self, _: &mut Consumer<T, S, Tma<P::Queries>>) -> Option<P> {
        self.0.next()
    }
}
