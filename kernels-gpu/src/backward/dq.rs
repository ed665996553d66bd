//! dQ of a block of queries, over the keys that it sees: the forward's loop.
use crate::backward::gradient::{of_scores, probabilities};
use crate::backward::sequence::TileSequence;
use crate::entries::{Portable, Run};
use crate::forward::ByBlock;
use crate::forward::mainloop::KvStage;
use crate::rows::{Rows, Sequence};
use crate::variant::blocks::{At, BlockRange, Seen, each_key_block};
use crate::variant::{MaskFn, Scores};
use spec::{BwdDq, BwdDqParams, Kernel};
use tile::beside::HeadValues;
use tile::copy::Walk;
use tile::group::SplitGroup;
use tile::mma::{Acc, Mma, Resident};
use tile::pipeline::{Ring, Unfilled};
use tile::shared::SharedTile;
use tile::{Block, Smem, shared_layout};

shared_layout! {
    /// A block of queries, with the gradient of its output.
    Queries / QueriesSlot<E, M, D, DV> { q: SharedTile<E, M, D>, d_o: SharedTile<E, M, DV> }
}

/// The shared memory for the queries.
type QueryPlace<C, E, const M: usize, const D: usize, const DV: usize> =
    Unfilled<Queries<E, M, D, DV>, ByBlock<C>>;

/// The stages of keys and values.
type KvRing<C, E, const N: usize, const D: usize, const DV: usize, const STAGES: usize> =
    Ring<KvStage<E, N, D, DV, 1>, STAGES, ByBlock<C>>;

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
    const DV: usize,
> Portable for BwdDq<E, Mask, M, W, N, D, HELD, STAGES, DV>
{
    #[inline(always)]
    fn body<C: Kernel>(p: &BwdDqParams, variant: &Mask::Params, mut block: Block<C>, smem: Smem<C>) {
        const { assert!(!Mask::LISTED, "backward kernels take ranges of keys, no lists of key blocks") }
        let (BwdDqParams { problem: p, dq }, block) = (p, &mut block);
        let ((mine, _), tile_n) = (block.split_groups::<M, W, 1>(), N as u32 * 16);
        let (warp, tile_m) = (mine.warp(), M as u32 * 16);
        let tile = p.order.tile(block.index());
        let Some(own) = TileSequence::find::<false>(p, tile, tile_m, block.warp()) else { return };
        let tile = own.tile;
        let (q, d_o) = own.pair::<E, D, DV>([&p.q, &p.d_o], tile.head, own.queries);
        let (k, v) = own.pair::<E, D, DV>([&p.k, &p.v], tile.kv_head, own.keys);
        let (first, of) = (tile.m_block * tile_m, [own.index, tile.head]);
        let (q_len, k_len) = (q.rows(), k.rows());
        let rows = Rows { first, tile: tile_m, q_len, k_len, window: own.window, of };
        let of = Sequence::of(p, &rows, 0, block);
        let mask = Mask::keys(variant, &of);
        let range = BlockRange::of(mask, &rows, tile_n);
        if range.start >= range.end {
            return own.rows::<E, D>(dq, tile.head, own.queries).clear::<_, M>(first, block);
        }

        // Prologue: Q and dO, then the last keys and values.
        let (queries, ring): (QueryPlace<C, E, M, D, DV>, KvRing<C, E, N, D, DV, STAGES>) = smem.split();
        let (mut k, mut v) = (Walk::down(k, range.end - 1, block), Walk::down(v, range.end - 1, block));
        let queries = queries.fill(|slot| {
            slot.q.copy_edge(&mut Walk::down(q, tile.m_block, block), block);
            slot.d_o.copy_edge(&mut Walk::down(d_o, tile.m_block, block), block);
        });
        let kv = ring.prologue(queries, |i, slot| {
            if i < range.end - range.start {
                slot.k.copy_edge(&mut k, block);
                slot.v.copy_edge(&mut v, block);
            }
        });
        let (row0, head) = (first + mine.first(), tile.batch * p.order.heads.get() + tile.head);
        let [minus_lse, delta] =
            [&p.minus_lse, &p.delta].map(|all| HeadValues::new(all, head).load::<W>(own.values + row0, warp));
        let scores = Mask::scores(p, variant, &of);
        let (queries, mut kv) = kv.land(block);
        let (q, d_o) = (
            Resident::<_, M, W, D, HELD>::load(&queries.q, mine),
            Resident::<_, M, W, DV, HELD>::load(&queries.d_o, mine),
        );

        // Mainloop.
        let mut acc_dq = Acc::<W, D>::zero();
        let mut step = |n: u32, edge: bool| {
            let stage = kv.advance(block, |slot, block| {
                if STAGES == 1 {
                    // Without a prologue, this call copies the first block, which the end of the keys may
                    // cut.
                    slot.k.copy_edge(&mut k, block);
                    slot.v.copy_edge(&mut v, block);
                } else if n + 1 >= range.start + STAGES as u32 {
                    slot.k.copy_whole(&mut k, block);
                    slot.v.copy_whole(&mut v, block);
                }
            });
            let at = At { rows: &rows, row0, key0: n * tile_n, warp };
            let seen = Seen::<_, W>::of(mask, at);
            if edge && !seen.any(tile_n, warp) {
                return; // this warp's rows see none of these keys
            }
            let (k, v) = (stage.k.tile(SplitGroup::ONLY), stage.v.tile(SplitGroup::ONLY));
            let (mut acc_s, mut acc_dp) = (Acc::<W, N>::zero(), Acc::<W, N>::zero());
            acc_s.mma_abt(&q, &k, warp, |_| {}); // S = Q K^T
            let factors = scores.differentiate(p, &mut acc_s, at);
            if edge {
                seen.mask(&mut acc_s, at)
            }
            let _ = probabilities::<E, Mask::Scores, W, N>(p, &mut acc_s, factors, &minus_lse);
            acc_dp.mma_abt(&d_o, &v, warp, |_| {}); // dP = dO V^T
            let ds = of_scores::<E, W, N>(&acc_dp, &acc_s, &delta);
            acc_dq.mma_ab(&ds, &k, warp, |_| {}); // dQ += dS K
        };
        each_key_block!(Mask, range, step);

        // Epilogue. The warp computes its rows again from its number, so that they take no register earlier.
        block.forget_thread();
        let (mine, _) = block.split_groups::<M, W, 1>();
        let dq = own.rows::<E, D>(dq, tile.head, own.queries);
        acc_dq.map(|x| x * p.scale);
        queries.q.spent().store_through(&acc_dq, &dq, first, mine);
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
    const DV: usize,
> Run for BwdDq<E, Mask, M, W, N, D, HELD, STAGES, DV>
{
    #[inline(always)]
    fn run(p: BwdDqParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}
