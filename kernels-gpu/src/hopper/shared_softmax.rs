//! Online softmax of two warpgroups that take turns at key blocks and pass the maxima from turn to turn. The
//! maxima are lazy, as in [`crate::softmax`].
use crate::softmax::{NONE, SLACK};
use core::hint::cold_path;
use cuda_std::math::{ex2, fma};
use tile::Warp;
use tile::mma::{AFrag, Acc, Mma, RowVec};

/// State of the rows of one warp. The maximum is negated and in units of the exponent, so that one fma adds
/// it. A lane holds the sums of its own columns, over the key blocks of its warpgroup.
pub struct SharedSoftmax {
    scale_log2: f32,
    minus_max: RowVec<1>,
    row_sum: RowVec<1>,
}

impl SharedSoftmax {
    /// The state before the first key block.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        SharedSoftmax { scale_log2, minus_max: RowVec::splat(-NONE), row_sum: RowVec::splat(0.0) }
    }

    /// The maxima, negated.
    #[inline(always)]
    pub fn minus_max(&self) -> RowVec<1> {
        self.minus_max
    }

    /// Takes over the maxima of the other warpgroup, which has seen a later key block, and rescales O.
    #[inline(always)]
    pub fn adopt<const D: usize>(&mut self, minus_max: RowVec<1>, acc_o: &mut Acc<1, D>, warp: Warp) {
        let differs = minus_max.zip(self.minus_max, |new, old| if new == old { 0.0 } else { 1.0 });
        if warp.any(differs.reduce(f32::max) > 0.0) {
            cold_path();
            acc_o.scale_rows(&self.settle(minus_max));
        }
    }

    /// Raises the maxima to a key block's scores if at least one row grew by more than `SLACK`. Then returns
    /// true in all lanes, and the factors of O.
    #[inline(always)]
    pub fn observe<const N: usize>(&mut self, s: &Acc<1, N>, warp: Warp) -> (bool, RowVec<1>) {
        let seen = s.lane_max();
        let growth = seen.zip(self.minus_max, |x, minus_max| fma(x, self.scale_log2, minus_max));
        let grew = warp.any(growth.reduce(f32::max) > SLACK);
        let mut rescale = RowVec::splat(1.0);
        if grew {
            cold_path();
            let seen = seen.across(warp, f32::max);
            rescale = self.settle(seen.zip(self.minus_max, |x, old| old.min(-x * self.scale_log2)));
        }
        (grew, rescale)
    }

    /// P = exp2(S - max). Adds P to the sums.
    #[inline(always)]
    pub fn exp<E: Mma, const N: usize>(&mut self, s: &Acc<1, N>) -> AFrag<E, 1, N> {
        let (p, sums) = s.to_operand::<E, true>(|x, row| ex2(fma(x, self.scale_log2, self.minus_max[row])));
        self.row_sum = self.row_sum.zip(sums, |a, b| a + b);
        p
    }

    /// The maxima (to base 2), and the sums of the probabilities.
    #[inline(always)]
    pub fn state(&self, warp: Warp) -> [RowVec<1>; 2] {
        [self.minus_max.map(|x| -x), self.row_sum.across(warp, |a, b| a + b)]
    }

    /// Replaces the maxima, rescales the sums, and returns the factors of O.
    #[inline(always)]
    fn settle(&mut self, minus_max: RowVec<1>) -> RowVec<1> {
        let rescale = minus_max.zip(self.minus_max, |new, old| ex2(new - old));
        self.minus_max = minus_max;
        self.row_sum = self.row_sum.zip(rescale, |sum, rescale| sum * rescale);
        rescale
    }
}
