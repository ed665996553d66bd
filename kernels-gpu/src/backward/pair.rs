//! A block of queries and a block of keys: their copies, and the gradients of their scores. The gradients of
//! what is added to scores take them pair by pair, in any order.
use crate::backward::gradient::of_changed;
use crate::backward::sequence::TileSequence;
use crate::forward::ByBlock;
use crate::rows::Rows;
use crate::variant::blocks::{At, Seen};
use crate::variant::{MaskFn, Scores};
use spec::{BwdParams, Kernel};
use tile::beside::HeadValues;
use tile::copy::Walk;
use tile::group::WarpRows;
use tile::mma::{Acc, Mma, Resident};
use tile::pipeline::Ring;
use tile::shared::SharedTile;
use tile::{Block, shared_layout};

shared_layout! {
    /// A block of queries with the gradient of its output, and a block of keys with its values.
    Pair / PairSlot<E, M, N, D, DV> {
        q: SharedTile<E, M, D>, d_o: SharedTile<E, M, DV>, k: SharedTile<E, N, D>, v: SharedTile<E, N, DV>
    }
}

/// The stages of pairs.
pub type PairRing<
    C,
    E,
    const M: usize,
    const N: usize,
    const D: usize,
    const DV: usize,
    const STAGES: usize,
> = Ring<Pair<E, M, N, D, DV>, STAGES, ByBlock<C>>;

/// The block of queries of a work tile.
#[derive(Clone, Copy)]
pub struct QueryBlock<'p> {
    /// The problem.
    pub p: &'p BwdParams,
    /// The work tile, with its sequence.
    pub own: TileSequence,
    /// Queries of a block.
    pub tile_m: u32,
}

impl QueryBlock<'_> {
    /// The rows of the block.
    #[inline(always)]
    pub fn rows(&self) -> Rows {
        let QueryBlock { own: TileSequence { tile, index, queries, keys, window, .. }, tile_m, .. } = *self;
        let (q_len, k_len, of) = (queries.rows(), keys.rows(), [index, tile.head]);
        Rows { first: tile.m_block * tile_m, tile: tile_m, q_len, k_len, window, of }
    }

    /// Starts the copies of the queries and of block `n` of the keys.
    #[inline(always)]
    pub fn copy<C: Kernel, E: Mma, const M: usize, const N: usize, const D: usize, const DV: usize>(
        &self,
        n: u32,
        slot: &PairSlot<E, M, N, D, DV, ByBlock<C>>,
        block: &Block<C>,
    ) {
        let QueryBlock { p, own, .. } = self;
        let (q, d_o) = own.pair::<E, D, DV>([&p.q, &p.d_o], own.tile.head, own.queries);
        let (k, v) = own.pair::<E, D, DV>([&p.k, &p.v], own.tile.kv_head, own.keys);
        slot.q.copy_edge(&mut Walk::down(q, own.tile.m_block, block), block);
        slot.d_o.copy_edge(&mut Walk::down(d_o, own.tile.m_block, block), block);
        slot.k.copy_edge(&mut Walk::down(k, n, block), block);
        slot.v.copy_edge(&mut Walk::down(v, n, block), block);
    }

    /// Returns the products of the warp's queries and the keys of block `n`, and the gradients of their
    /// scores.
    #[inline(always)]
    pub fn gradients<
        Mask: MaskFn,
        E: Mma,
        const M: usize,
        const W: usize,
        const N: usize,
        const D: usize,
        const DV: usize,
    >(
        &self,
        (mask, scores): (Mask::Keys, Mask::Scores),
        n: u32,
        pair: &Pair<E, M, N, D, DV>,
        mine: WarpRows<M, W>,
    ) -> [Acc<W, N>; 2] {
        let (rows, warp, p, own) = (self.rows(), mine.warp(), self.p, &self.own);
        let row0 = rows.first + mine.first();
        let at = At { rows: &rows, row0, key0: n * N as u32 * 16, warp };
        let head = own.tile.batch * p.order.heads.get() + own.tile.head;
        let [minus_lse, delta] =
            [&p.minus_lse, &p.delta].map(|all| HeadValues::new(all, head).load::<W>(own.values + row0, warp));
        let q = Resident::<_, M, W, D, 0>::load(&pair.q, mine);
        let d_o = Resident::<_, M, W, DV, 0>::load(&pair.d_o, mine);
        let (mut acc_s, mut acc_dp) = (Acc::<W, N>::zero(), Acc::<W, N>::zero());
        acc_s.mma_abt(&q, &pair.k, warp, |_| {}); // S = Q K^T
        let products = acc_s;
        scores.change(p, &mut acc_s, at);
        Seen::<_, W>::of(mask, at).mask(&mut acc_s, at);
        acc_dp.mma_abt(&d_o, &pair.v, warp, |_| {}); // dP = dO V^T
        [products, of_changed::<Mask::Scores, W, N>(p, acc_dp, acc_s, &minus_lse, &delta)]
    }
}
