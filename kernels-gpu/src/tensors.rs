//! A work tile's tensors, and the epilogue's stores.
use crate::lengths::Span;
use crate::rows::Rows;
use crate::softmax::Softmax;
use crate::work::{QueryTile, TileNumber};
use attention_tile::HeadScales;
use spec::{Element, FwdParams, Kernel, WorkTile};
use tile::Block;
use tile::copy::TileSource;
use tile::epilogue::Spent;
use tile::global::{GlobalRows, GlobalVec};
use tile::group::{Capability, WarpRows};
use tile::mma::{Acc, Mma};

/// The tensors of a tile of queries. The keys of the tile's head have type `K`, the values type `V`.
pub struct TileTensors<E, const D: usize, const DV: usize, K = GlobalRows<E, D>, V = GlobalRows<E, DV>> {
    /// Queries of the head.
    pub q: GlobalRows<E, D>,
    /// Keys of the head.
    pub k: K,
    /// Values of the head.
    pub v: V,
    /// Output of the head.
    pub o: GlobalRows<E, DV>,
    /// Log-sum-exp of the head's rows.
    pub lse: GlobalVec,
    /// Index of the query block in the head.
    pub m_block: u32,
    /// The tile's rows.
    pub rows: Rows,
}

impl<E: Mma, const D: usize, const DV: usize> TileTensors<E, D, DV> {
    /// The tensors of a head of a batch, with `tile_m` rows per tile. `of` computes the rows. See
    /// [`TensorTile::tensors`].
    #[inline(always)]
    pub fn of(p: &FwdParams, tile: WorkTile, of: &impl QueryTile, tile_m: u32, own_values: bool) -> Self {
        let (q, k) =
            (GlobalRows::new(&p.q, tile.batch, tile.head), GlobalRows::new(&p.k, tile.batch, tile.kv_head));
        let v = GlobalRows::new(&p.v, tile.batch, tile.kv_head);
        TileTensors {
            v: if own_values { v } else { v.as_wide_as(&k) },
            o: GlobalRows::new(&p.o, tile.batch, tile.head),
            lse: GlobalVec::new(&p.lse, tile.batch, tile.head, q.rows()),
            m_block: tile.m_block,
            rows: of.rows(p, tile_m),
            q,
            k,
        }
    }

    /// The tensors of the sequence that has these queries and keys.
    #[inline(always)]
    pub fn part(self, queries: Span, keys: Span) -> Self {
        let TileTensors { q, k, v, o, lse, .. } = self;
        // As arrays of one type, because LLVM orders the code of pairs differently.
        let [q, o] = [q, o.retyped()].map(|x| x.part(queries.first(), queries.rows()));
        let [k, v] = [k, v.retyped()].map(|x| x.part(keys.first(), keys.rows()));
        let lse = lse.part(queries.first(), queries.rows());
        TileTensors { q, k, v: v.retyped(), o: o.retyped(), lse, ..self }
    }

    /// This tile with other keys and values, of the same number.
    #[inline(always)]
    pub fn with<K, V>(self, k: K, v: V) -> TileTensors<E, D, DV, K, V> {
        let TileTensors { q, o, lse, m_block, rows, .. } = self;
        TileTensors { q, k, v, o, lse, m_block, rows }
    }
}

impl<E: Mma, const D: usize, const DV: usize, K, V> TileTensors<E, D, DV, K, V> {
    /// Stores the result of rows that see no key: O = 0, and `sink` as the LSE. Without a sink, `sink` is
    /// minus infinity.
    #[inline(always)]
    pub fn store_nothing_seen<C: Kernel, const M: usize>(&self, sink: f32, block: &Block<C>) {
        self.o.clear::<_, M>(self.rows.first, block);
        self.lse.fill(sink, self.rows.first, self.rows.tile, block);
    }

    /// Normalises O, stores it through the shared memory `place`, and stores the LSE.
    #[inline(always)]
    pub fn store<const M: usize, const W: usize>(
        &self,
        mut acc_o: Acc<W, DV>,
        softmax: &Softmax<W>,
        place: Spent<E, M, DV>,
        mine: WarpRows<M, W>,
    ) {
        softmax.normalise(&mut acc_o, mine.warp());
        place.store_through(&acc_o, &self.o, self.rows.first, mine);
        self.lse.store(&softmax.lse(), self.rows.first + mine.first(), mine.warp());
    }

    /// Stores the maxima of the rows, if the caller wants them. They lie like the LSE, so their place takes
    /// no registers in the main loop.
    #[inline(always)]
    pub fn max_logits(&self, p: &FwdParams, store: impl FnOnce(GlobalVec)) {
        if p.max_logits.base != 0 {
            store(self.lse.beside(&p.lse, &p.max_logits));
        }
    }
}

/// Keys and values of a head of a batch, stored as `S`.
#[inline(always)]
pub fn stored<S: Element, const D: usize>(p: &FwdParams, tile: WorkTile) -> [GlobalRows<S, D>; 2] {
    [&p.k, &p.v].map(|tensor| GlobalRows::new(tensor, tile.batch, tile.kv_head))
}

/// The tensors of tile `P`: keys of `D` base tiles of columns, values of `DV`.
pub type TensorsOf<P, E, const D: usize, const DV: usize> =
    TileTensors<E, D, DV, <P as TensorTile>::Keys<E, D>, <P as TensorTile>::Keys<E, DV>>;

/// A tile whose tensors the kernel accesses through addresses.
pub trait TensorTile: QueryTile {
    /// Whether the keys lie in pages. At the largest head dim, page lookups leave no registers for slopes.
    const PAGES: bool = false;

    /// The source of a tile's keys, or of its values: rows in global memory that are `D` base tiles wide,
    /// with elements of type `S`.
    type Keys<S: Element, const D: usize>: TileSource<S, D>;

    /// The tile's tensors, with `tile_m` queries per tile. With `own_values`, a constant of the kernel,
    /// values have their own number of columns, and in pages their own strides. Otherwise the kernel saves
    /// the registers.
    fn tensors<E: Mma, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tile_m: u32,
        own_values: bool,
    ) -> TensorsOf<Self, E, D, DV>;

    /// The tile's keys and values, stored as `S`.
    fn stored<S: Element, const D: usize>(&self, p: &FwdParams) -> [Self::Keys<S, D>; 2];

    /// The scale of the tile's keys (0) or values (1).
    #[inline(always)]
    fn scale(&self, _: usize, _: &impl Capability) -> f32 {
        1.0
    }

    /// The scales of the tile's keys and values, if the rows of the cache have scales.
    #[inline(always)]
    fn row_scales(&self) -> Option<HeadScales<'_>> {
        None
    }

    /// Stores the result of rows that see no key; `sink` is the sink's logit.
    #[inline(always)]
    fn store_nothing_seen<E: Mma, K: Kernel, const M: usize, const D: usize, const DV: usize>(
        &self,
        _: &FwdParams,
        tensors: &TensorsOf<Self, E, D, DV>,
        sink: f32,
        block: &Block<K>,
    ) {
        tensors.store_nothing_seen::<K, M>(sink, block);
    }
    /// Normalises O, stores it through the shared memory `place`, and stores the LSE.
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize, const DV: usize>(
        &self,
        _: &FwdParams,
        tensors: &TensorsOf<Self, E, D, DV>,
        acc_o: Acc<W, DV>,
        softmax: &Softmax<W>,
        place: Spent<E, M, DV>,
        mine: WarpRows<M, W>,
    ) {
        tensors.store(acc_o, softmax, place, mine);
    }
}

impl TensorTile for TileNumber {
    type Keys<S: Element, const D: usize> = GlobalRows<S, D>;

    #[inline(always)]
    fn stored<S: Element, const D: usize>(&self, p: &FwdParams) -> [GlobalRows<S, D>; 2] {
        stored(p, p.order.tile(self.0))
    }

    #[inline(always)]
    fn tensors<E: Mma, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tile_m: u32,
        own_values: bool,
    ) -> TileTensors<E, D, DV> {
        let tile = p.order.tile(self.0);
        TileTensors::of(p, tile, &tile, tile_m, own_values)
    }
    #[inline(always)]
    fn store_nothing_seen<E: Mma, K: Kernel, const M: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tensors: &TileTensors<E, D, DV>,
        sink: f32,
        block: &Block<K>,
    ) {
        tensors.store_nothing_seen::<K, M>(sink, block);
        let Rows { first, tile, .. } = tensors.rows;
        tensors.max_logits(p, |maxima| maxima.fill(f32::NEG_INFINITY, first, tile, block));
    }
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tensors: &TileTensors<E, D, DV>,
        acc_o: Acc<W, DV>,
        softmax: &Softmax<W>,
        place: Spent<E, M, DV>,
        mine: WarpRows<M, W>,
    ) {
        tensors.store(acc_o, softmax, place, mine);
        let row0 = tensors.rows.first + mine.first();
        tensors.max_logits(p, |maxima| maxima.store(&softmax.max_logits(), row0, mine.warp()));
    }
}
