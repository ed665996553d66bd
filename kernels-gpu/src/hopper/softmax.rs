//! Online softmax that searches for a maximum only if it must. The kernel computes exponentials with the old
//! maximum. The kernel needs the row sums of the key block anyway. A row sum bounds each exponential in its
//! row, so the sums prove that no exponential overflowed f16.
use crate::softmax::NONE;
use crate::variant::kept::Kept;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::{ex2, fma, lg2, rcp};
use spec::DType;
use tile::Warp;
use tile::mma::{AFrag, Acc, Mma, RowVec};

/// Largest row sum, over one lane's columns, of a key block that needs no new maximum. Each probability is at
/// most this sum. The largest f16 number is 65504.
const BOUND: f32 = 32768.0;

/// The new maximum exceeds the largest score by this power of two, so that rows seldom exceed [`BOUND`]. For
/// f16 there is no headroom. Many probabilities that lie 15 powers of two below the row's largest may make up
/// all of the row's sum. f16 can keep the 9 bits of these probabilities only if the largest probability is 1.
const fn headroom(of: DType) -> f32 {
    match of {
        DType::Bf16 => 8.0,
        _ => 0.0,
    }
}

/// State of the rows of one warp. The maximum is negated and in units of the exponent, as in
/// [`crate::softmax::Softmax`]. A lane holds the sums of its own columns. For `ORDERED`, see
/// [`Acc::to_operand`].
pub struct BoundedSoftmax<const ORDERED: bool> {
    scale_log2: f32,
    minus_max: RowVec<1>,
    row_sum: RowVec<1>,
}

/// P of a key block, and the row sums of P.
pub type Exponentials<E, const N: usize> = (AFrag<E, 1, N>, RowVec<1>);

impl<const ORDERED: bool> BoundedSoftmax<ORDERED> {
    /// The state after the first key block, and P of this block.
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

    /// P = exp2(S - max), with the old maximum. `kept` also gets the scores. The flag is equal in all lanes,
    /// and says whether the maximum of a row grew so much that the kernel must compute P again.
    #[inline(always)]
    pub fn exp<E: Mma, X, const N: usize>(
        &self,
        s: &Acc<1, N>,
        kept: &mut impl Kept<X>,
        warp: Warp,
    ) -> (bool, Exponentials<E, N>) {
        let (p, sums) = s.to_operand::<E, ORDERED>(|x, row| {
            kept.see_one(x, row);
            self.exponential(x, row)
        });
        // This line does not use `>`, so that NaN in both rows of a lane counts as growth.
        let bounded = sums.reduce(f32::max) <= BOUND;
        (warp.any(!bounded), (p, sums))
    }

    /// Accepts P, and adds the row sums of P.
    #[inline(always)]
    pub fn keep<P>(&mut self, (p, sums): (P, RowVec<1>)) -> P {
        self.row_sum = self.row_sum.zip(sums, |a, b| a + b);
        p
    }

    /// Computes P again with new maxima, adds its row sums, and rescales O.
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

    /// The factor that normalises O, and the LSE (natural logarithm; -inf for a row that saw no key). The
    /// factor of such a row is negative, because O of the row may be 0 times infinity.
    ///
    /// A `sink` is one more key, with value 0 and with this natural logit, which is below infinity. The
    /// kernel adds the sink at the end, so probabilities keep their precision even if the sink is large.
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

    /// Raises the maxima to the scores, with headroom. Returns the factors of the sums and of O.
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
        s.to_operand::<E, ORDERED>(|x, row| self.exponential(x, row))
    }

    #[inline(always)]
    fn exponential(&self, x: f32, row: [usize; 2]) -> f32 {
        ex2(fma(x, self.scale_log2, self.minus_max[row]))
    }
}
