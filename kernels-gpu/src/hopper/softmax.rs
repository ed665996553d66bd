//! Online softmax that searches a maximum only if it must. The kernel computes exponentials with the old
//! maximum. It needs the block's row sums anyway. A row sum bounds each exponential of its row, so the sums
//! prove that no exponential overflowed f16.
use crate::softmax::NONE;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::{ex2, fma, lg2, rcp};
use spec::DType;
use tile::Warp;
use tile::mma::{AFrag, Acc, Mma, RowVec};

/// Largest row sum of a lane's columns in a block that needs no new maximum. Each probability is at most this
/// sum. The largest f16 number is 65504.
const BOUND: f32 = 32768.0;

/// The new maximum exceeds the largest score by this power of two, so that rows seldom exceed [`BOUND`]. f16
/// has no headroom: many probabilities 15 powers below a row's largest may make up all of the row's sum, and
/// f16 keeps the 9 bits that they need only if the largest is 1.
const fn headroom(of: DType) -> f32 {
    match of {
        DType::Bf16 => 8.0,
        _ => 0.0,
    }
}

/// State of one warp's rows. The maximum is negated and in units of the exponent, as in
/// [`crate::softmax::Softmax`]. Sums are of this lane's columns. `ORDERED`: see [`Acc::to_operand`].
pub struct BoundedSoftmax<const ORDERED: bool> {
    scale_log2: f32,
    minus_max: RowVec<1>,
    row_sum: RowVec<1>,
}

/// P of a block and its row sums.
pub type Exponentials<E, const N: usize> = (AFrag<E, 1, N>, RowVec<1>);

impl<const ORDERED: bool> BoundedSoftmax<ORDERED> {
    /// The state after the first block, and the block's P.
    #[inline(always)]
    pub fn first<E: Mma, const N: usize>(
        s: &Acc<1, N>,
        scale_log2: f32,
        warp: Warp,
    ) -> (Self, AFrag<E, 1, N>) {
        let none = RowVec::splat(-NONE);
        let mut softmax = BoundedSoftmax { scale_log2, minus_max: none, row_sum: RowVec::splat(0.0) };
        softmax.raise::<E, N>(s, warp);
        let (p, sums) = softmax.exponentials(s);
        softmax.row_sum = sums;
        (softmax, p)
    }

    /// P = exp2(S - max) with the old maximum. The flag, equal in all lanes, says whether some row grew so
    /// much that P must be computed again.
    #[inline(always)]
    pub fn exp<E: Mma, const N: usize>(&self, s: &Acc<1, N>, warp: Warp) -> (bool, Exponentials<E, N>) {
        let (p, sums) = self.exponentials(s);
        // Not `>`: NaN in both rows of a lane must count as growth.
        let bounded = sums.reduce(f32::max) <= BOUND;
        (warp.any(!bounded), (p, sums))
    }

    /// Accepts P, and adds its row sums.
    #[inline(always)]
    pub fn keep<P>(&mut self, (p, sums): (P, RowVec<1>)) -> P {
        self.row_sum = self.row_sum.zip(sums, |a, b| a + b);
        p
    }

    /// Computes P with new maxima, adds its row sums, and rescales O.
    #[inline(always)]
    pub fn rebase<E: Mma, const N: usize, const D: usize>(
        &mut self,
        s: &Acc<1, N>,
        acc_o: &mut Acc<1, D>,
        warp: Warp,
    ) -> AFrag<E, 1, N> {
        let rescale = self.raise::<E, N>(s, warp);
        let (p, sums) = self.exponentials(s);
        self.row_sum = self.row_sum.fma(&rescale, &sums);
        acc_o.scale_rows(&rescale);
        p
    }

    /// The factor that normalises O, and the LSE: the natural logarithm, -inf for a row that saw no key. Such
    /// a row gets a negative factor, because its O may be 0 times infinity.
    ///
    /// A `sink` is one more key with this natural logit, below infinity, and with value 0. The kernel adds it
    /// at the end, so probabilities keep their precision however large the sink is.
    #[inline(always)]
    pub fn finish(&self, sink: Option<f32>, warp: Warp) -> (RowVec<1>, RowVec<1>) {
        let sum = self.row_sum.across(warp, |a, b| a + b);
        let Some(sink) = sink else {
            let lse = sum.zip(self.minus_max, |sum, minus_max| (lg2(sum) - minus_max) * LN_2);
            return (sum.map(|x| if x == 0.0 { -1.0 } else { rcp(x) }), lse);
        };
        let logit = sink * LOG2_E;
        let minus_max = self.minus_max.map(|old| old.min(-logit));
        let rescale = minus_max.zip(self.minus_max, |new, old| ex2(new - old));
        let total = sum.fma(&rescale, &minus_max.map(|new| ex2(logit + new)));
        let lse = total.zip(minus_max, |sum, minus_max| (lg2(sum) - minus_max) * LN_2);
        let factor = rescale.zip(total, |rescale, total| rescale * rcp(total));
        (factor.zip(sum, |factor, sum| if sum == 0.0 { -1.0 } else { factor }), lse)
    }

    /// Raises the maxima to the scores, with headroom. Returns the factors of sums and O.
    #[inline(always)]
    fn raise<E: Mma, const N: usize>(&mut self, s: &Acc<1, N>, warp: Warp) -> RowVec<1> {
        let seen = s.lane_max().across(warp, f32::max);
        let new = seen.zip(self.minus_max, |x, old| old.min(fma(-x, self.scale_log2, -headroom(E::DTYPE))));
        let rescale = new.zip(self.minus_max, |new, old| ex2(new - old));
        self.minus_max = new;
        rescale
    }

    #[inline(always)]
    fn exponentials<E: Mma, const N: usize>(&self, s: &Acc<1, N>) -> Exponentials<E, N> {
        s.to_operand::<E, ORDERED>(|x, row| ex2(fma(x, self.scale_log2, self.minus_max[row])))
    }
}
