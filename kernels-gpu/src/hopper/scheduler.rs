//! Work tiles whose tensors are copied through tensor maps, and tile schedulers.
use crate::work::QueryTile;
use spec::{HopperParams, TensorMap, WorkTile};
use tile::Warp;
use tile::global::GlobalVec;
use tile::pipeline::{Consumer, Producer};
use tile::tma::{MapKind, StoreMapKind, Tma, TmaTile, TmaTransport};

/// A work tile whose queries, keys and values are copied through tensor maps.
pub trait MapTile: QueryTile {
    /// The kind of tensor map of Q and O.
    type Queries: StoreMapKind;
    /// The kind of tensor map of K and V.
    type Keys: MapKind;
    /// The parameters of a kernel with such work tiles.
    type Params: AsRef<ForwardOf<Self>>;

    /// Whether the tile has no query. The producer skips such a tile.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        false
    }
    /// The tile's query head.
    fn head(&self) -> u32;
    /// The tile of another query head.
    fn with_head(self, head: u32) -> Self;
    /// Whether the tile has a share of the columns of V and O.
    const IS_SHARE: bool = false;
    /// The first of the tile's columns of V and O.
    #[inline(always)]
    fn first_column(&self) -> u32 {
        0
    }
    /// The coordinates of row `row` of the tile's queries.
    fn queries(&self, row: u32) -> <Self::Queries as MapKind>::At;
    /// The coordinates of row `row` of the tile's keys.
    fn keys(&self, p: &Self::Params, row: u32) -> <Self::Keys as MapKind>::At;
    /// The LSE tensor, with all of its rows.
    fn lse(&self, p: &Self::Params) -> GlobalVec;

    /// An equal tile that ptxas may keep in uniform registers, with its factors. A producer that is a whole
    /// warp calls this function for the tile that it has found.
    #[inline(always)]
    fn in_warp(self, _: &Self::Params, _: Warp) -> Self {
        self
    }

    /// Whether keys and values have scales.
    const SCALED: bool = false;
    /// The factor of the products of the tile's keys ([`crate::capped::factor`]).
    #[inline(always)]
    fn factor(&self) -> f32 {
        1.0
    }
    /// The scale of the tile's values, in the schedules of 16 bits.
    #[inline(always)]
    fn of_values(&self) -> f32 {
        1.0
    }
}

/// The forward parameters of kernels whose work tiles have type `P`.
pub type ForwardOf<P> =
    HopperParams<<<P as MapTile>::Queries as MapKind>::Data, <<P as MapTile>::Keys as MapKind>::Data>;
/// The parameters of kernels whose scheduler has type `S`.
pub type ParamsOf<S> = <<S as Scheduler>::Tile as MapTile>::Params;
/// The kind of tensor map of K and V, for scheduler `S`.
pub type KeysOf<S> = <<S as Scheduler>::Tile as MapTile>::Keys;
/// The kind of tensor map of Q and O, for scheduler `S`.
type QueriesOf<S> = <<S as Scheduler>::Tile as MapTile>::Queries;

/// A tile scheduler. The scheduler gives the producer and the consumers a block's work tiles, one after the
/// other. The consumers need not repeat the producer's search.
pub trait Scheduler {
    /// The type of work tiles.
    type Tile: MapTile;
    /// The transport of the work tiles' queries.
    type By: TmaTransport<MapKind = QueriesOf<Self>>;

    /// The producer's next work tile, if there is one.
    fn find(&mut self) -> Option<Self::Tile>;
    /// Starts the copy of the tile's queries. `at` are the coordinates of the first query.
    fn load<T: TmaTile, const S: usize>(
        q: &mut Producer<T, S, Self::By>,
        tile: &Self::Tile,
        from: &T::Tensor<QueriesOf<Self>>,
        at: <QueriesOf<Self> as MapKind>::At,
    );
    /// Tells the consumers that no work tile follows, if they do not know it.
    #[inline(always)]
    fn end<T: TmaTile, const S: usize>(_: &mut Producer<T, S, Self::By>, _: &T::Tensor<QueriesOf<Self>>) {}
    /// The consumers' next work tile, if there is one. The consumers wait for the tile's queries.
    fn receive<T: TmaTile, const S: usize>(&mut self, q: &mut Consumer<T, S, Self::By>)
    -> Option<Self::Tile>;
}

/// A work tile of dense tensors. Its coordinates are row, head and batch.
impl MapTile for WorkTile {
    type Queries = TensorMap;
    type Keys = TensorMap;
    type Params = HopperParams;
    #[inline(always)]
    fn head(&self) -> u32 {
        self.head
    }
    #[inline(always)]
    fn with_head(self, head: u32) -> Self {
        WorkTile { head, ..self }
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
        GlobalVec::new(&p.lse, self.batch, self.head, p.q_len)
    }
}

/// The static tile scheduler: work tiles follow from the parameters alone, so each warp computes them.
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
