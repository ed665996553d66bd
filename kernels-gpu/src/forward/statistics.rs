//! Statistics of scores: each row's largest score, and the entropy of its probabilities P = exp(S - LSE) over
//! keys. The kernel computes S as forward kernels do, but reads no values, so it composes with every forward
//! kernel. For each row, a lane keeps the maximum of its own columns, and relative to this maximum the sums
//! of exp2(x) and of exp2(x) x. The entropy is log(sum of exp2(x)) minus the quotient of both sums.
use crate::entries::{Portable, Run};
use crate::forward::{ByBlock, QPlace, Tile};
use crate::rows::Sequence;
use crate::softmax::NONE;
use crate::tensors::{TensorTile, TensorsOf};
use crate::variant::blocks::{At, BlockRange, Seen};
use crate::variant::{MaskFn, Scores};
use core::f32::consts::LN_2;
use cuda_std::math::{ex2, fma, lg2, rcp};
use spec::{FwdParams, Kernel, Statistics};
use tile::copy::{TileSource, Walk};
use tile::group::WarpRows;
use tile::mma::{Acc, Mma, Resident, RowVec};
use tile::pipeline::Ring;
use tile::shared::SharedTile;
use tile::{Block, Smem, Warp};

/// The stages of keys.
type KeyRing<C, E, const N: usize, const D: usize, const STAGES: usize> =
    Ring<SharedTile<E, N, D>, STAGES, ByBlock<C>>;

/// An exponent of 2 whose power is 0. Smaller exponents, such as minus infinity, count as this one, because 0
/// times infinity is NaN.
const LEAST: f32 = -256.0;

/// The statistics of the rows of one warp, over the columns of one lane, or of all lanes.
struct Sums<const W: usize> {
    /// The largest score, as an exponent of 2.
    max: RowVec<W>,
    /// The sum of exp2(x), where x is a score's exponent less `max`.
    sum: RowVec<W>,
    /// The sum of exp2(x) x.
    weighted: RowVec<W>,
}

impl<const W: usize> Sums<W> {
    /// Rows that have seen no key.
    #[inline(always)]
    fn none() -> Self {
        Sums { max: RowVec::splat(NONE), sum: RowVec::splat(0.0), weighted: RowVec::splat(0.0) }
    }

    /// Raises the maxima to `new`, and converts the sums.
    #[inline(always)]
    fn raise(&mut self, new: RowVec<W>) {
        let by = self.max.zip(new, |old, new| (old - new).max(LEAST));
        let factor = by.map(ex2);
        self.weighted = by.fma(&self.sum, &self.weighted).zip(factor, |x, factor| x * factor);
        self.sum = self.sum.zip(factor, |x, factor| x * factor);
        self.max = new;
    }

    /// Adds a block's scores. A score of NaN makes the entropy of its row NaN.
    #[inline(always)]
    fn add<const N: usize>(&mut self, s: &Acc<W, N>, scale_log2: f32) {
        self.raise(s.lane_max().zip(self.max, |x, old| old.max(x * scale_log2)));
        s.each_of_rows(|x, row| {
            let x = fma(x, scale_log2, -self.max[row]);
            let p = ex2(x);
            self.sum[row] += p;
            self.weighted[row] = fma(p, x.max(LEAST), self.weighted[row]);
        });
    }

    /// Merges the lanes of each row.
    #[inline(always)]
    fn merge(&mut self, warp: Warp) {
        self.raise(self.max.across(warp, f32::max));
        [self.sum, self.weighted] = [self.sum, self.weighted].map(|sums| sums.across(warp, |a, b| a + b));
    }

    /// The largest scaled score of each row; -inf for a row that saw no key.
    #[inline(always)]
    fn max_logits(&self) -> RowVec<W> {
        self.max.map(|x| if x == NONE { f32::NEG_INFINITY } else { x * LN_2 })
    }

    /// The entropy of each row, in nats; 0 for a row that saw no key. Roundings do not make it negative.
    #[inline(always)]
    fn entropy(&self) -> RowVec<W> {
        self.sum.zip(self.weighted, |sum, weighted| {
            let entropy = (lg2(sum) - weighted * rcp(sum)) * LN_2;
            if sum == 0.0 || entropy < 0.0 { 0.0 } else { entropy }
        })
    }

    /// Stores the statistics: first the entropy, in the place of the LSE, then the maxima. If the caller
    /// wants no entropy, both have one place.
    #[inline(always)]
    fn store<P: TensorTile, E: Mma, const M: usize, const D: usize>(
        &self,
        p: &FwdParams,
        tensors: &TensorsOf<P, E, D, D>,
        mine: WarpRows<M, W>,
    ) {
        let row0 = tensors.rows.first + mine.first();
        tensors.lse.store(&self.entropy(), row0, mine.warp());
        tensors.max_logits(p, |maxima| maxima.store(&self.max_logits(), row0, mine.warp()));
    }
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
> Tile for Statistics<E, Mask, M, W, N, D, Q_STEPS, STAGES>
{
    #[inline(always)]
    fn tile<C: Kernel, P: TensorTile>(
        p: &FwdParams,
        variant: &Mask::Params,
        tile: &P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        const { assert!(!Mask::LISTED, "`Statistics` takes ranges of key blocks") }
        let ((mine, _), tile_n) = (block.split_groups::<M, W, 1>(), N as u32 * 16);
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, false);
        let (rows, warp) = (tensors.rows, mine.warp());
        let row0 = rows.first + mine.first();
        let of = Sequence::of(p, &rows, tile.before(), block);
        let mask = Mask::keys(variant, &of);
        let range = BlockRange::of(mask, &rows, tile_n);
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            tensors.lse.fill(0.0, rows.first, rows.tile, block);
            let fill = |maxima: tile::global::GlobalVec| {
                maxima.fill(f32::NEG_INFINITY, rows.first, rows.tile, block)
            };
            return tensors.max_logits(p, fill);
        }

        // Prologue: the copies of Q, and then of the last STAGES - 1 key blocks, are all in flight.
        let (q, ring): (QPlace<C, E, M, D>, KeyRing<C, E, N, D, STAGES>) = smem.split();
        let mut k = tensors.k.walk(range.end - 1, block);
        let q = q.fill(|slot| slot.copy_edge(&mut Walk::down(tensors.q, tensors.m_block, block), block));
        let stages = ring.prologue(q, |i, slot| {
            if i < range.end - range.start {
                slot.copy_edge(&mut k, block);
            }
        });
        let (q_tile, mut stages) = stages.land(block);
        let q = Resident::<_, M, W, D, Q_STEPS>::load(&q_tile, mine);

        // Mainloop.
        let scores = Mask::scores(p, variant, &of);
        let mut sums = Sums::<W>::none();
        for n in (range.start..range.end).rev() {
            let keys = stages.advance(block, |slot, block| {
                if n + 1 >= range.start + STAGES as u32 {
                    slot.copy_whole(&mut k, block)
                }
            });
            let at = At { rows: &rows, row0, key0: n * tile_n, warp };
            let mut acc_s = Acc::<W, N>::zero();
            acc_s.mma_abt(&q, &keys, warp, |_| {}); // S = Q K^T
            scores.change(p, &mut acc_s, at);
            // A branch instead of a loop each for edges and interior: this keeps the kernel small.
            if !(range.interior.0..range.interior.1).contains(&n) {
                Seen::<_, W>::of(mask, at).mask(&mut acc_s, at);
            }
            sums.add(&acc_s, Mask::Scores::scale_log2(p));
        }

        sums.merge(warp);
        sums.store::<P, E, M, D>(p, &tensors, mine);
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
    const STAGES: usize,
> Run for Statistics<E, Mask, M, W, N, D, Q_STEPS, STAGES>
{
    #[inline(always)]
    fn run(p: FwdParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}
