//! A tile's tensors: one thread block's share of the problem, and what it stores.
use crate::lengths::Span;
use crate::mask::{BlockRange, MaskFn, Rows};
use crate::softmax::Softmax;
use spec::{FwdParams, Kernel, Window, WorkTile};
use tile::Block;
use tile::copy::TileSource;
use tile::epilogue::Spent;
use tile::global::{GlobalRows, GlobalVec};
use tile::group::WarpRows;
use tile::mma::{Acc, Mma};

/// One tile of queries with its head's keys and values, which lie in `Keys`.
pub struct TileTensors<E, const D: usize, Keys = GlobalRows<E, D>> {
    /// Queries of the head.
    pub q: GlobalRows<E, D>,
    /// Keys of the head.
    pub k: Keys,
    /// Values of the head.
    pub v: Keys,
    /// Output of the head.
    pub o: GlobalRows<E, D>,
    /// Log-sum-exp of the head's rows.
    pub lse: GlobalVec,
    /// Which of all batches' query heads it is.
    pub head: u32,
    /// Which query tile of the head it is.
    pub m_block: u32,
    /// The tile's rows.
    pub rows: Rows,
}

impl<E: Mma, const D: usize> TileTensors<E, D> {
    /// `tile_m` queries.
    #[inline(always)]
    pub fn of(p: &FwdParams, tile: WorkTile, tile_m: u32) -> Self {
        let (q, k) =
            (GlobalRows::new(&p.q, tile.batch, tile.head), GlobalRows::new(&p.k, tile.batch, tile.kv_head));
        TileTensors {
            v: GlobalRows::new(&p.v, tile.batch, tile.kv_head).as_wide_as(&k),
            o: GlobalRows::new(&p.o, tile.batch, tile.head),
            lse: GlobalVec::new(&p.lse, tile.batch, tile.head, q.rows()),
            head: tile.batch * p.heads().get() + tile.head,
            m_block: tile.m_block,
            rows: Rows {
                first: tile.m_block * tile_m,
                tile: tile_m,
                q_len: q.rows(),
                k_len: k.rows(),
                window: p.window,
                of: [tile.batch, tile.head],
            },
            q,
            k,
        }
    }

    /// The same tile of one sequence, whose rows these are of all sequences'.
    #[inline(always)]
    pub fn of_sequence(self, sequence: u32, queries: Span, keys: Span, window: Window) -> Self {
        let TileTensors { q, k, v, o, lse, rows, .. } = self;
        let [q, o] = [q, o].map(|x| x.part(queries.first(), queries.rows()));
        let [k, v] = [k, v].map(|x| x.part(keys.first(), keys.rows()));
        let lse = lse.part(queries.first(), queries.rows());
        let of = [sequence, rows.of[1]];
        let rows = Rows { q_len: queries.rows(), k_len: keys.rows(), window, of, ..rows };
        TileTensors { q, k, v, o, lse, rows, ..self }
    }

    /// The same tile with other keys and values, of as many rows.
    #[inline(always)]
    pub fn with<Keys>(self, [k, v]: [Keys; 2]) -> TileTensors<E, D, Keys> {
        let TileTensors { q, o, lse, head, m_block, rows, .. } = self;
        TileTensors { q, k, v, o, lse, head, m_block, rows }
    }
}

impl<E: Mma, const D: usize, Keys> TileTensors<E, D, Keys> {
    /// What a tile stores whose rows see no key: O = 0, LSE = -inf.
    #[inline(always)]
    pub fn store_nothing_seen<K: Kernel, const M: usize>(&self, block: &Block<K>) {
        self.o.clear::<_, M>(self.rows.first, block);
        self.lse.fill(f32::NEG_INFINITY, self.rows.first, self.rows.tile, block);
    }

    /// Normalises and stores O through `place`, and stores LSE.
    #[inline(always)]
    pub fn store<const M: usize, const W: usize>(
        &self,
        mut acc_o: Acc<W, D>,
        softmax: &Softmax<W>,
        place: Spent<E, M, D>,
        mine: WarpRows<M, W>,
    ) {
        softmax.normalise(&mut acc_o, mine.warp());
        place.store_through(&acc_o, &self.o, self.rows.first, mine);
        self.lse.store(&softmax.lse(), self.rows.first + mine.first(), mine.warp());
    }
}

/// What of a problem is a thread block's: a tile, of which it may have all keys, and where what it makes of
/// it goes.
pub trait Portion {
    /// Whether it has all keys that the tile sees.
    const ALL_KEYS: bool = true;
    /// Whether keys lie in pages, whose lookups leave the largest head dim no register for slopes.
    const PAGES: bool = false;

    /// Where keys and values lie.
    type Keys<E: Mma, const D: usize>: TileSource<E, D>;

    /// The tile of `tile_m` queries.
    fn tensors<E: Mma, const D: usize>(
        &self,
        p: &FwdParams,
        tile_m: u32,
    ) -> TileTensors<E, D, Self::Keys<E, D>>;

    /// Its share of the key blocks that the tile sees.
    #[inline(always)]
    fn of(&self, range: BlockRange) -> BlockRange {
        range
    }
    /// Whether it may have no key block under mask `Mask`.
    #[inline(always)]
    fn may_be_empty<Mask: MaskFn>(&self) -> bool {
        !Mask::SEES_ALL
    }
    /// Stores the result of no keys.
    #[inline(always)]
    fn store_nothing_seen<E: Mma, K: Kernel, const M: usize, const D: usize>(
        &self,
        tensors: &TileTensors<E, D, Self::Keys<E, D>>,
        block: &Block<K>,
    ) {
        tensors.store_nothing_seen::<K, M>(block);
    }
    /// Normalises O and stores it through `place`, with its LSE.
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize>(
        &self,
        _: &FwdParams,
        tensors: &TileTensors<E, D, Self::Keys<E, D>>,
        acc_o: Acc<W, D>,
        softmax: &Softmax<W>,
        place: Spent<E, M, D>,
        mine: WarpRows<M, W>,
    ) {
        tensors.store(acc_o, softmax, place, mine);
    }
}

/// All of the tile that is so many-th in order.
pub struct Whole(pub u32);

impl Portion for Whole {
    type Keys<E: Mma, const D: usize> = GlobalRows<E, D>;

    #[inline(always)]
    fn tensors<E: Mma, const D: usize>(&self, p: &FwdParams, tile_m: u32) -> TileTensors<E, D> {
        TileTensors::of(p, p.order.tile(self.0), tile_m)
    }
}
