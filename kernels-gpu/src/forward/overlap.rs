//! Forward attention in which the tensor cores never wait for the softmax (FlashAttention-3, section 3.2,
//! within one warp): S(n - 1) runs during the exponentials of P(n). A stage contains V(n) and K(n - 1).
use crate::capped::Uncapped;
use crate::entries::{Portable, Run};
use crate::forward::{ByBlock, Tile};
use crate::rows::Sequence;
use crate::softmax::Softmax;
use crate::tensors::TensorTile;
use crate::variant::blocks::{At, BlockRange, Seen};
use crate::variant::{MaskFn, Scores};
use spec::{FwdOverlap, FwdParams, Kernel};
use tile::copy::TileSource;
use tile::copy::Walk;
use tile::mma::{AFrag, Acc, Mma, Part, Resident};
use tile::pipeline::{Ring, Unfilled};
use tile::shared::SharedTile;
use tile::{Block, Smem, shared_layout};

shared_layout! {
    /// The lead: Q and the last K block, which arrive before the first stage.
    Lead / LeadSlot<E, M, N, D> { q: SharedTile<E, M, D>, k: SharedTile<E, N, D> }
}
shared_layout! {
    /// A V block and the K block before it.
    VkStage / VkSlot<E, N, D> { v: SharedTile<E, N, D>, k: SharedTile<E, N, D> }
}

/// The shared memory for the lead.
type LeadPlace<C, E, const M: usize, const N: usize, const D: usize> = Unfilled<Lead<E, M, N, D>, ByBlock<C>>;
/// The shared memory for the stages.
type VkRing<C, E, const N: usize, const D: usize> = Ring<VkStage<E, N, D>, 2, ByBlock<C>>;

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> Tile for FwdOverlap<E, Mask, M, W, N, D, Q_STEPS>
{
    #[inline(always)]
    fn tile<C: Kernel, P: TensorTile>(
        p: &FwdParams,
        variant: &Mask::Params,
        tile: &P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        const {
            assert!(
                !Mask::LEFT,
                "`FwdOverlap` takes every key block down to block 0: a mask with `LEFT` needs `Fwd`"
            )
        }
        const {
            assert!(
                !Mask::LISTED,
                "`FwdOverlap` takes all key blocks down to block 0: `BlockSparse` needs `Fwd`"
            )
        }
        const { assert!(!P::SPLIT, "`FwdOverlap` takes all key blocks down to block 0: `Split` needs `Fwd`") }
        let (mine, _) = block.split_groups::<M, W, 1>();
        let (warp, tile_n) = (mine.warp(), N as u32 * 16);
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, false);
        let rows = tensors.rows;
        let row0 = rows.first + mine.first();
        let of = Sequence::of(p, &rows, tile.before(), block);
        let mask = Mask::keys(variant, &of);
        let range = BlockRange::of(mask, &rows, tile_n);
        if P::may_see_nothing::<Mask>() && range.end == 0 {
            let sink = Mask::sink(variant, &of, true);
            return tile.store_nothing_seen::<_, C, M, D, D>(p, &tensors, sink, block);
        }
        let mut n = range.end - 1;

        // Prologue: copies of Q with the last K block, then of the last V block with the K block before it.
        let (lead, ring): (LeadPlace<C, E, M, N, D>, VkRing<C, E, N, D>) = smem.split();
        let (mut k, mut v) = (tensors.k.walk(n, block), tensors.v.walk(n, block));
        let lead = lead.fill(|slot| {
            slot.q.copy_edge(&mut Walk::down(tensors.q, tensors.m_block, block), block);
            slot.k.copy_edge(&mut k, block);
        });
        let kv = ring.prologue(lead, |_, slot| {
            slot.v.copy_edge(&mut v, block);
            if n > 0 {
                slot.k.copy_whole(&mut k, block)
            }
        });
        let (Lead { q: q_tile, k: k_last }, mut kv) = kv.land(block);
        let q_frag = Resident::<_, M, W, D, Q_STEPS>::load(&q_tile, mine);
        let mut acc_s = Acc::<W, N>::zero();
        acc_s.mma_abt(&q_frag, &k_last, warp, |_| {});

        // Mainloop: `step` receives S(n) and returns S(n - 1).
        let (mut acc_o, mut softmax) = (Acc::<W, D>::zero(), Softmax::of(p, Mask::Scores::scale_log2(p)));
        let scores = Mask::scores(p, variant, &of);
        let mut step = |n: u32, mut acc_s: Acc<W, N>, edge: bool| {
            let stage = kv.advance(block, |slot, block| {
                if n > 0 {
                    slot.v.copy_whole(&mut v, block)
                }
                if n > 1 {
                    slot.k.copy_whole(&mut k, block)
                }
            });
            let at = At { rows: &rows, row0, key0: n * tile_n, warp };
            scores.change(&Uncapped, &mut acc_s, at);
            if edge {
                Seen::<_, W>::of(mask, at).mask(&mut acc_s, at);
            }
            softmax.observe(&acc_s, None, &mut acc_o, warp);
            let (mut next, mut probs) = (Acc::<W, N>::zero(), AFrag::zero());
            if n > 0 {
                // S(n - 1) = Q K^T runs beside P(n) = exp2(S(n) - max).
                next.mma_abt(&q_frag, &stage.k, warp, |part| softmax.exp(&acc_s, None, &mut probs, part));
            } else {
                softmax.exp(&acc_s, None, &mut probs, Part::ALL);
            }
            acc_o.mma_ab(&probs, &stage.v, warp, |part| softmax.sum(&probs, part, warp)); // O += P V
            next
        };
        while n > 0 && n >= range.interior.1 {
            acc_s = step(n, acc_s, true);
            n -= 1;
        }
        while n > 2 {
            acc_s = step(n, acc_s, false); // a second step, so that S returns to its registers without a copy
            acc_s = step(n - 1, acc_s, false);
            n -= 2;
        }
        while n > 0 {
            acc_s = step(n, acc_s, false);
            n -= 1;
        }
        step(0, acc_s, range.interior.1 == 0);

        // Epilogue: the results are complete.
        if Mask::SINK {
            softmax.add_sink(Mask::sink(variant, &of, true), &mut acc_o);
        }
        tile.store(p, &tensors, acc_o, &softmax, q_tile.spent(), mine);
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> Run for FwdOverlap<E, Mask, M, W, N, D, Q_STEPS>
{
    #[inline(always)]
    fn run(p: FwdParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}
