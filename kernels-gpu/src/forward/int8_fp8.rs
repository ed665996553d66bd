//! Forward attention on quantised keys and values: scores are products of int8, outputs are products of e4m3.
//! docs/design/eight-bits.md has the arithmetic.
use crate::forward::ByBlock;
use crate::forward::quantised::{ByteStages, ByteTile, OnBytes};
use crate::rows::Sequence;
use crate::softmax::NONE;
use crate::variant::blocks::{At, Seen, each_key_block};
use crate::variant::tile_mask::TileMask;
use crate::variant::{MaskFn, Scores};
use core::f32::consts::LN_2;
use cuda_std::math::{ex2, fma, lg2, rcp};
use spec::{FwdInt8Fp8, FwdParams, Kernel};
use tile::mma::{Acc, ByteFrag, BytePlace, Integers, Mma, RowPlace, RowVec};
use tile::pipeline::Ring;
use tile::shared::ByteStage;
use tile::{Block, Smem, Warp};

/// Probabilities of a block are relative to the block's largest one, which becomes 2^8: an e4m3, so the
/// largest weight of a row has no rounding error.
const TOP: f32 = 8.0;
/// The reference of a row rises if a block's maximum exceeds it by more than this number (log2).
const SLACK: f32 = 32.0;

/// The stages.
type ByteRing<C, const N: usize, const D: usize> = Ring<ByteStage<N, D>, 2, ByBlock<C>>;

/// The softmax of the rows of one warp. Each block of keys has its own maximum, at which its probabilities
/// are rounded; weights relate blocks to the row's reference.
struct BlockSoftmax<const M: usize> {
    /// Factor of the scores of a row, which converts them to exponents of 2.
    scale: RowVec<M>,
    reference: RowVec<M>,
    /// The sum of this lane's columns.
    sum: RowVec<M>,
}

impl<const M: usize> BlockSoftmax<M> {
    #[inline(always)]
    fn new(scale: &RowVec<M>, scale_log2: f32) -> Self {
        // With a factor of 0, the score of a hidden key would be NaN. Small products are 0, too.
        let scale = scale.map(|x| x * scale_log2).map(|x| if x == 0.0 { f32::MIN_POSITIVE } else { x });
        BlockSoftmax { scale, reference: RowVec::splat(NONE), sum: RowVec::splat(0.0) }
    }

    /// Returns the probabilities of a block of scores, and the weight of each row of the block.
    #[inline(always)]
    fn step<const N: usize, const D: usize>(
        &mut self,
        s: &Acc<M, N>,
        acc_o: &mut Acc<M, D>,
        warp: Warp,
    ) -> (ByteFrag<M, N>, RowVec<M>) {
        let most = s.lane_max().across(warp, f32::max);
        // A finite number, also for rows that see no key of the block.
        let own = most.zip(self.scale, |x, scale| (x * scale).max(NONE));
        if warp.any(own.zip(self.reference, |own, reference| own - reference).reduce(f32::max) > SLACK) {
            let new = own.zip(self.reference, f32::max);
            let rescale = self.reference.zip(new, |old, new| ex2(old - new));
            self.reference = new;
            self.sum = self.sum.zip(rescale, |sum, factor| sum * factor);
            acc_o.scale_rows(&rescale);
        }
        let weight = own.zip(self.reference, |own, reference| ex2(own - reference));
        let minus_own = own.map(|own| TOP - own);
        let (probs, sums) = s.to_e4m3(|x, row| ex2(fma(x, self.scale[row], minus_own[row])));
        self.sum = sums.fma(&weight, &self.sum);
        (probs, weight)
    }

    /// Divides O by the sums, and returns the LSE of base 2; both are those of rows that saw no key, if the
    /// sum is 0.
    #[inline(always)]
    fn finish<const D: usize>(&self, acc_o: &mut Acc<M, D>, warp: Warp) -> RowVec<M> {
        let sum = self.sum.across(warp, |a, b| a + b);
        acc_o.scale_or_clear_rows(&sum.map(|x| if x == 0.0 { -1.0 } else { rcp(x) }));
        sum.zip(self.reference, |sum, reference| lg2(sum) - TOP + reference)
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
    const KEPT: usize,
> OnBytes for FwdInt8Fp8<E, Mask, M, W, N, D, HELD, KEPT>
{
    #[inline(always)]
    fn tile<C: Kernel, P: ByteTile>(
        p: &FwdParams,
        tile: &P,
        again: impl Fn(&Block<C>) -> P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        const { assert!(!Mask::SINK && !Mask::LISTED, "images follow no list, and no kernel adds sinks") }
        const { assert!((KEPT == 0) == Mask::Scores::IS_NONE, "functions of scores need whole scores") }
        let (mine, team) = block.split_groups::<M, W, 1>();
        let warp = mine.warp();
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, false);
        let (rows, tile_n) = (tensors.rows, N as u32 * 16);
        let of = Sequence::of(p, &rows, tile.before(), block);
        let mask = Mask::tile(&(), &of, [M as u32 * 16, tile_n]).uniform(warp);
        let range = mask.range(&rows, tile_n);
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            return tile.store_nothing_seen::<_, C, M, D, D>(p, &tensors, f32::NEG_INFINITY, block);
        }

        // Prologue: the last stage is in flight while each warp rounds its rows of Q.
        let (ring, (q, kept)): (ByteRing<C, N, D>, (BytePlace<M, W, D, HELD>, RowPlace<M, W, KEPT>)) =
            smem.split();
        let mut stages = tile.stages::<C, N, D>(p, range.end - 1, block);
        let mut kv = ring.start(|_, slot| stages.copy::<true>(slot, range.end - 1, block));
        let (q, scale) = match P::IN_ORDER {
            false => q.quantise(&tensors.q, rows.first, mine, block),
            true => q.quantise_in_order(&tensors.q, rows.first, mine, block),
        };
        let scores = Mask::scores(p, &(), &of);
        // Functions of scores need whole scores, which have one factor for all rows.
        let whole = kept.keep(
            core::array::from_fn(|i| match i {
                0 => scale,
                _ => tile.of_means::<E, M, W, N, D>(p, (&tensors.q, rows.first), mine),
            }),
            block,
        );
        let scale = if KEPT == 0 { scale } else { RowVec::splat(1.0) };
        let scale_log2 = Mask::Scores::scale_log2(p);
        let (mut acc_o, mut softmax) = (Acc::<W, D>::zero(), BlockSoftmax::new(&scale, scale_log2));

        // Mainloop.
        let row0 = rows.first + mine.first();
        let mut step = |n: u32, edge: bool| {
            let stage = kv.advance(block, |slot, block| {
                if n > range.start {
                    stages.copy::<false>(slot, n - 1, block);
                }
            });
            let at = At { rows: &rows, row0, key0: n * tile_n, warp };
            let seen = Seen::<_, W>::of(mask.keys(), at);
            if edge && !seen.any(tile_n, warp) {
                return; // no row of this warp sees a key of this tile
            }
            let mut acc_s = Integers::product(&q, &stage, warp).scaled(&stage, warp);
            if let [scale, of_mean] = &whole.load()[..] {
                acc_s.fma_rows(scale, of_mean);
                scores.change(p, &mut acc_s, at);
            }
            if edge {
                seen.mask(&mut acc_s, at);
            }
            let (probs, weight) = softmax.step(&acc_s, &mut acc_o, warp);
            let scale = stage.scale();
            acc_o.add_e4m3(&probs, &stage, &weight.map(|x| x * scale), warp);
        };
        each_key_block!(Mask, range, step);

        // Epilogue.
        let tile = again(block);
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, false);
        let (first, row0) = (tensors.rows.first, tensors.rows.first + mine.first());
        let lse = softmax.finish(&mut acc_o, warp);
        let place = kv.reclaim(block).spent::<E, M, D, 1>(team);
        place.store_through(&acc_o, &tensors.o, first, mine);
        if KEPT > 0 {
            tensors.lse.store(&lse.map(|lse| lse * LN_2), row0, warp);
        } else if p.lse.base != 0 {
            // The scores lack the product of the query and the mean of keys.
            let dot = tile.of_means::<E, M, W, N, D>(p, (&tensors.q, first), mine);
            tensors.lse.store(&lse.zip(dot, |lse, dot| fma(dot, p.scale_log2, lse) * LN_2), row0, warp);
        }
    }
}
