//! Online softmax (Milakov and Gimelshein, 2018; FlashAttention-2, algorithm 1) with a lazy maximum: O is
//! rescaled only when a maximum has grown enough to matter.
use cuda_std::math::{ex2, fma, lg2, rcp};
use tile::Warp;
use tile::mma::{AFrag, Acc, Mma, Part, RowSum, RowVec};

/// The running maximum may lag behind by this much (log2) before O is rescaled: probabilities stay below 256,
/// exact in f32 sums, safe in f16. Measured on an H200 against rescaling at every block: D = 128 +10 to 15 %,
/// D = 64 up to 10 % (docs/performance-log.md).
pub const SLACK: f32 = 8.0;
/// Below every score: finite, so that a row that has seen no key yet makes no NaN.
pub const NONE: f32 = f32::MIN;

/// State of one warp's `16 * M` rows. The maximum is kept negated and in units of the exponent, `-(score *
/// scale * log2 e)`: what the fma adds.
pub struct Softmax<const M: usize> {
    scale_log2: f32,
    minus_max: RowVec<M>,
    row_sum: RowSum<M>,
}

impl<const M: usize> Softmax<M> {
    /// No key seen yet.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        Softmax { scale_log2, minus_max: RowVec::splat(-NONE), row_sum: RowSum::zero() }
    }

    /// Takes note of a block's scores. Rare after the first block: some row grew by more than `SLACK`, and O
    /// and the sums are rescaled. The common case is one maximum a lane and one vote: no shuffle, no
    /// multiplication.
    #[inline(always)]
    pub fn observe<const N: usize, const D: usize>(
        &mut self,
        s: &Acc<M, N>,
        acc_o: &mut Acc<M, D>,
        warp: Warp,
    ) {
        let seen = s.lane_max();
        let growth = seen.zip(self.minus_max, |x, minus_max| fma(x, self.scale_log2, minus_max));
        if warp.any(growth.reduce(f32::max) > SLACK) {
            let new = seen.across(warp, f32::max).zip(self.minus_max, |x, old| old.min(-x * self.scale_log2));
            let rescale = new.zip(self.minus_max, |new, old| ex2(new - old));
            self.minus_max = new;
            self.row_sum.scale(&rescale);
            acc_o.scale_rows(&rescale);
        }
    }

    /// One part of P = exp2(S - max), as the left operand of P V.
    #[inline(always)]
    pub fn exp<E: Mma, const N: usize>(&self, s: &Acc<M, N>, p: &mut AFrag<E, M, N>, part: Part) {
        s.map_to_operand(p, part, |x, row| ex2(fma(x, self.scale_log2, self.minus_max[row])))
    }

    /// One part of row_sum += rows of P.
    #[inline(always)]
    pub fn sum<E: Mma, const N: usize>(&mut self, p: &AFrag<E, M, N>, part: Part, warp: Warp) {
        self.row_sum.add(p, part, warp)
    }

    /// What to hand to the warp that merges.
    #[inline(always)]
    pub fn state(&self) -> (RowVec<M>, RowSum<M>) {
        (self.minus_max, self.row_sum)
    }

    /// Takes in what another warp saw of other keys (FlashDecoding's combine, within a block). Returns what
    /// this warp's O, and the other's, must be multiplied by before they are added.
    #[inline(always)]
    pub fn merge(&mut self, mut other: (RowVec<M>, RowSum<M>)) -> (RowVec<M>, RowVec<M>) {
        let new = self.minus_max.zip(other.0, f32::min);
        let (mine, theirs) =
            (new.zip(self.minus_max, |n, o| ex2(n - o)), new.zip(other.0, |n, o| ex2(n - o)));
        self.row_sum.scale(&mine);
        other.1.scale(&theirs);
        self.row_sum.merge(&other.1);
        self.minus_max = new;
        (mine, theirs)
    }

    /// Divides O by the row sums. A row that saw no key becomes 0 whatever O is, which may be 0 times
    /// infinity; there is seldom one, and a select for each element would be as many instructions as the
    /// division.
    #[inline(always)]
    pub fn normalise<const D: usize>(&self, acc_o: &mut Acc<M, D>, warp: Warp) {
        let factors = self.row_sum.total().map(|x| if x == 0.0 { -1.0 } else { rcp(x) });
        match warp.any(factors.reduce(f32::min) < 0.0) {
            true => acc_o.scale_or_clear_rows(&factors),
            false => acc_o.scale_rows(&factors),
        }
    }

    /// Log-sum-exp of each row's scaled scores, natural logarithm; -inf for a row that saw no key.
    #[inline(always)]
    pub fn lse(&self) -> RowVec<M> {
        self.row_sum
            .total()
            .zip(self.minus_max, |sum, minus_max| (lg2(sum) - minus_max) * core::f32::consts::LN_2)
    }
}
