//! A tile's tensors: one thread block's share of the problem, and what it stores.
use crate::mask::{BlockRange, MaskFn, Rows};
use crate::softmax::Softmax;
use spec::{FwdParams, Kernel, WorkTile};
use tile::{Acc, Block, GlobalRows, GlobalVec, Mma, SharedTile, WarpRows};

/// One tile of queries with its head's keys and values.
pub struct TileTensors<E, const D: usize> {
    /// Queries of the head.
    pub q: GlobalRows<E, D>,
    /// Keys of the head.
    pub k: GlobalRows<E, D>,
    /// Values of the head.
    pub v: GlobalRows<E, D>,
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
            (GlobalRows::of(&p.q, tile.batch, tile.head), GlobalRows::of(&p.k, tile.batch, tile.kv_head));
        TileTensors {
            v: GlobalRows::of(&p.v, tile.batch, tile.kv_head).as_wide_as(&k),
            o: GlobalRows::of(&p.o, tile.batch, tile.head),
            lse: GlobalVec::of(&p.lse, tile.batch, tile.head, q.rows()),
            head: tile.batch * p.heads().get() + tile.head,
            m_block: tile.m_block,
            rows: Rows {
                first: tile.m_block * tile_m,
                tile: tile_m,
                q_len: q.rows(),
                k_len: k.rows(),
                window: p.window,
            },
            q,
            k,
        }
    }

    /// What a tile stores whose rows see no key: O = 0, LSE = -inf.
    #[inline(always)]
    pub fn store_nothing_seen<K: Kernel, const M: usize>(&self, block: &Block<K>) {
        self.o.clear::<_, M>(self.rows.first, block);
        self.lse.fill(f32::NEG_INFINITY, self.rows.first, self.rows.tile, block);
    }

    /// Normalises and stores O through Q's tile, which nobody needs any more, and stores LSE.
    #[inline(always)]
    pub fn store<const M: usize, const W: usize>(
        &self,
        mut acc_o: Acc<W, D>,
        softmax: &Softmax<W>,
        q_tile: SharedTile<E, M, D>,
        mine: WarpRows<M, W>,
    ) {
        acc_o.scale_rows(&softmax.normalise());
        q_tile.store_through(&acc_o, &self.o, self.rows.first, mine);
        self.lse.store(&softmax.lse(), self.rows.first + mine.first(), mine.warp());
    }
}

/// What of a problem is a thread block's: a tile, of which it may have all keys, and where what it makes of
/// it goes.
pub trait Portion {
    /// Whether it has all keys that the tile sees.
    const ALL_KEYS: bool = true;

    /// The tile of `tile_m` queries.
    fn tensors<E: Mma, const D: usize>(&self, p: &FwdParams, tile_m: u32) -> TileTensors<E, D>;

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
        tensors: &TileTensors<E, D>,
        block: &Block<K>,
    ) {
        tensors.store_nothing_seen::<K, M>(block);
    }
    /// Normalises O and stores it with its LSE. Nobody needs Q's tile any more.
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize>(
        &self,
        tensors: &TileTensors<E, D>,
        acc_o: Acc<W, D>,
        softmax: &Softmax<W>,
        q_tile: SharedTile<E, M, D>,
        mine: WarpRows<M, W>,
    ) {
        tensors.store(acc_o, softmax, q_tile, mine);
    }
}

/// All of the tile that is so many-th in order.
pub struct Whole(pub u32);

impl Portion for Whole {
    #[inline(always)]
    fn tensors<E: Mma, const D: usize>(&self, p: &FwdParams, tile_m: u32) -> TileTensors<E, D> {
        TileTensors::of(p, p.order.tile(self.0), tile_m)
    }
}
