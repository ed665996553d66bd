//! Online softmax with a maximum that is only looked for when it is needed. Exponentials are taken with the
//! old maximum; the block's row sums, which are needed anyway, bound every one of them, and so prove that
//! none has left f16.
use cuda_std::math::{ex2, fma, lg2, rcp};
use spec::DType;

use crate::softmax::NONE;
use tile::Warp;
use tile::mma::{AFrag, Acc, Mma, RowVec};

/// A lane's share of a block's row sums that needs no new maximum. No probability is above it, and half of
/// f16's 65504 is still far from that.
const BOUND: f32 = 32768.0;

/// By how many powers of two a maximum is taken higher than it is, so that rows seldom grow beyond [`BOUND`].
/// None in f16: what is 15 powers below a row's largest probability may be all of its sum, by the number of
/// such keys, and f16 has no more than the 9 bits for it that are left when the largest is 1.
const fn headroom(of: DType) -> f32 {
    match of {
        DType::Bf16 => 8.0,
        _ => 0.0,
    }
}

/// State of one warp's rows. The maximum is kept negated and in units of the exponent, as
/// [`crate::softmax`] does; sums are of this lane's columns alone. `ORDERED`: see [`Acc::to_operand`].
pub struct BoundedSoftmax<const ORDERED: bool> {
    scale_log2: f32,
    minus_max: RowVec<1>,
    row_sum: RowVec<1>,
}

/// P of a block and its row sums.
pub type Exponentials<E, const N: usize> = (AFrag<E, 1, N>, RowVec<1>);

impl<const ORDERED: bool> BoundedSoftmax<ORDERED> {
    /// That of the first block, and its P.
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

    /// P = exp2(S - max) with the maximum as it is, and, the same in all lanes, whether that will not do:
    /// some row grew by so much that P must be taken again.
    #[inline(always)]
    pub fn exp<E: Mma, const N: usize>(&self, s: &Acc<1, N>, warp: Warp) -> (bool, Exponentials<E, N>) {
        let (p, sums) = self.exponentials(s);
        // Not `>`: where both rows of a lane are NaN they count as grown.
        let bounded = sums.reduce(f32::max) <= BOUND;
        (warp.any(!bounded), (p, sums))
    }

    /// P as it is, its sums taken in.
    #[inline(always)]
    pub fn keep<P>(&mut self, (p, sums): (P, RowVec<1>)) -> P {
        self.row_sum = self.row_sum.zip(sums, |a, b| a + b);
        p
    }

    /// P with new maxima, its sums taken in, O rescaled.
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

    /// What O must be multiplied by, negative for a row that saw no key (its O may be 0 times infinity), and
    /// the log-sum-exp of each row's scaled scores, natural logarithm, which is -inf for a row that saw no
    /// key.
    #[inline(always)]
    pub fn finish(&self, warp: Warp) -> (RowVec<1>, RowVec<1>) {
        let total = self.row_sum.across(warp, |a, b| a + b);
        let lse =
            total.zip(self.minus_max, |sum, minus_max| (lg2(sum) - minus_max) * core::f32::consts::LN_2);
        (total.map(|x| if x == 0.0 { -1.0 } else { rcp(x) }), lse)
    }

    /// New maxima, with their headroom; what sums and O must be multiplied by.
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
