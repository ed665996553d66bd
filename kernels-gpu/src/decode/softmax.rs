//! Online softmax of columns with a lazy maximum. This is the transposed form of [`crate::softmax`].
use crate::softmax::{NONE, SLACK};
use cuda_std::math::{ex2, fma};
use tile::Warp;
use tile::mma::{ColAcc, ColFrag, ColSum, ColVec, TensorCore};

/// State of the `8 * G` columns of one warp. The maximum is negated and in units of the exponent, so that one
/// fma adds it.
pub struct Softmax<const G: usize> {
    scale_log2: f32,
    minus_max: ColVec<f32, G>,
    sum: ColSum<G>,
}

impl<const G: usize> Softmax<G> {
    /// The state before the first key.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        Softmax { scale_log2, minus_max: ColVec::splat(-NONE), sum: ColSum::zero() }
    }

    /// If the maximum of at least one column would grow by more than `SLACK`, raises the maxima to a tile's
    /// scores, and rescales O and the sums.
    #[inline(always)]
    pub fn observe<const R: usize, const D: usize>(
        &mut self,
        s: &ColAcc<R, G>,
        acc_o: &mut ColAcc<D, G>,
        warp: Warp,
    ) {
        let seen = s.lane_max();
        let growth = seen.zip(self.minus_max, |x, minus_max| fma(x, self.scale_log2, minus_max));
        if warp.any(growth.reduce(f32::max) > SLACK) {
            let new = seen.across(warp, f32::max).zip(self.minus_max, |x, old| old.min(-x * self.scale_log2));
            self.raise(new, acc_o);
        }
    }

    /// Replaces the negated maxima, and rescales O and the sums.
    #[inline(always)]
    fn raise<const D: usize>(&mut self, minus_max: ColVec<f32, G>, acc_o: &mut ColAcc<D, G>) {
        let rescale = minus_max.zip(self.minus_max, |new, old| ex2(new - old));
        self.minus_max = minus_max;
        self.sum.scale(&rescale);
        acc_o.scale_columns(&rescale);
    }

    /// Like [`Softmax::observe`], for values with scales: the maximum of a column is the maximum of its
    /// products of exp2(S) and scale. `values_log2` are the logarithms of the scales of this lane's two rows.
    /// The largest product with a scale is then near 1, whatever the scales are, and a column ignores the
    /// scales of keys that its mask hides.
    #[inline(always)]
    pub fn observe_scaled<const D: usize>(
        &mut self,
        s: &ColAcc<1, G>,
        values_log2: [f32; 2],
        acc_o: &mut ColAcc<D, G>,
        warp: Warp,
    ) {
        let seen = s.scaled_plus_rows(self.scale_log2, values_log2).lane_max();
        if warp.any(seen.zip(self.minus_max, |x, minus_max| x + minus_max).reduce(f32::max) > SLACK) {
            let new = seen.across(warp, f32::max).zip(self.minus_max, |x, old| old.min(-x));
            self.raise(new, acc_o);
        }
    }

    /// P = exp2(S - max), as the right operand of V^T P^T. Adds P to the sums.
    #[inline(always)]
    pub fn exp<E: TensorCore, const R: usize>(&mut self, s: &ColAcc<R, G>, warp: Warp) -> ColFrag<E, R, G> {
        let p = s.to_operand(warp, |x, column| ex2(fma(x, self.scale_log2, self.minus_max[column])));
        self.sum.add(&p, warp);
        p
    }

    /// P = exp2(S - max), with this lane's two rows of each tile multiplied by the scales `by`, as the right
    /// operand of V^T P^T. Adds P, without the scales, to this lane's sums. [`Softmax::gather`] must follow
    /// the last tile. A sum of rounded P would not help: the products with scales are rounded differently.
    #[inline(always)]
    pub fn exp_scaled<E: TensorCore>(
        &mut self,
        s: &ColAcc<1, G>,
        by: [f32; 2],
        warp: Warp,
    ) -> ColFrag<E, 1, G> {
        let mut p = *s;
        p.map_at(0, warp, |x, column, _| ex2(fma(x, self.scale_log2, self.minus_max[column])));
        self.sum.add_lanes(&p);
        p.scale_rows(by);
        p.to_operand(warp, |x, _| x)
    }

    /// Adds up the sums of all lanes.
    #[inline(always)]
    pub fn gather(&mut self, warp: Warp) {
        self.sum.gather(warp)
    }

    /// P = exp2(S - max) with the current maximum, as the right operand of V^T P^T. Does not change the sums.
    #[inline(always)]
    pub fn probabilities<E: TensorCore, const R: usize>(
        &self,
        s: &ColAcc<R, G>,
        warp: Warp,
    ) -> ColFrag<E, R, G> {
        s.to_operand(warp, |x, column| ex2(fma(x, self.scale_log2, self.minus_max[column])))
    }

    /// Whether this lane's scores exceed the current maximum by so much that the maximum must grow.
    #[inline(always)]
    pub fn grew<const R: usize>(&self, s: &ColAcc<R, G>) -> bool {
        let growth = s.lane_max().zip(self.minus_max, |x, minus_max| fma(x, self.scale_log2, minus_max));
        growth.reduce(f32::max) > SLACK
    }

    /// Returns the maxima that include a tile's scores, and the current maxima. Both are negated.
    #[inline(always)]
    pub fn maxima<const R: usize>(&self, s: &ColAcc<R, G>, warp: Warp) -> [ColVec<f32, G>; 2] {
        let seen = s.lane_max().across(warp, f32::max);
        [seen.zip(self.minus_max, |x, old| old.min(-x * self.scale_log2)), self.minus_max]
    }

    /// The factor of O and of the sums for a change of the negated maximum from `old` to `new`.
    #[inline(always)]
    pub fn rescale([new, old]: [f32; 2]) -> f32 {
        ex2(new - old)
    }

    /// Replaces the negated maxima, and rescales the sums.
    #[inline(always)]
    pub fn settle(&mut self, minus_max: ColVec<f32, G>) {
        self.sum.scale(&minus_max.zip(self.minus_max, |new, old| Self::rescale([new, old])));
        self.minus_max = minus_max;
    }

    /// Adds probabilities to the sums.
    #[inline(always)]
    pub fn count<E: TensorCore, const R: usize>(&mut self, probs: &ColFrag<E, R, G>, warp: Warp) {
        self.sum.add(probs, warp)
    }

    /// The maximum (to base 2) and the sum of each column.
    #[inline(always)]
    pub fn state(&self) -> [ColVec<f32, G>; 2] {
        [self.minus_max.zip(self.minus_max, |x, _| -x), self.sum.total()]
    }
}
