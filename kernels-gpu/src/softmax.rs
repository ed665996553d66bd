//! Online softmax (Milakov and Gimelshein, 2018; FlashAttention-2, algorithm 1) with a lazy maximum: O is
//! rescaled only when a maximum has grown enough to matter.
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::{ex2, fma, lg2, rcp};
use spec::FwdParams;
use tile::Warp;
use tile::mma::{AFrag, Acc, Mma, Part, RowSum, RowVec};

/// See [`FwdParams::SLACK`].
pub const SLACK: f32 = FwdParams::SLACK;
/// A maximum below every score. The number is finite, so that rows that have seen no key produce no NaN.
pub const NONE: f32 = f32::MIN;

/// Returns the natural logit of a sink as a finite number. An infinite logit becomes the largest number of
/// base 2, which takes all weight: infinity minus itself would be NaN.
#[inline(always)]
pub fn finite_logit(sink: f32) -> f32 {
    const MOST: f32 = f32::MAX * LN_2;
    if sink > MOST { MOST } else { sink }
}

/// A block's own exponents of 2, before the maximum is subtracted: `score * scale_log2 + add`.
#[derive(Clone, Copy)]
pub struct Exponents {
    /// Factor of the scores. It is not negative.
    pub scale_log2: f32,
    /// Added to each exponent.
    pub add: f32,
}

impl Exponents {
    /// The exponent of a score, less the maximum of its row.
    #[inline(always)]
    fn of(self, x: f32, minus_max: f32) -> f32 {
        fma(x, self.scale_log2, minus_max + self.add)
    }
}

/// State of the `16 * M` rows of one warp. The maximum is negated and in units of the exponent,
/// `-(score * scale * log2 e)`, so that one fma adds it.
pub struct Softmax<const M: usize> {
    scale_log2: f32,
    slack: f32,
    minus_max: RowVec<M>,
    row_sum: RowSum<M>,
    /// `minus_max` before the sink, if there is one.
    of_keys: Option<RowVec<M>>,
}

impl<const M: usize> Softmax<M> {
    /// The state before the first key of a problem whose scores have the factor `scale_log2`.
    #[inline(always)]
    pub fn of(p: &FwdParams, scale_log2: f32) -> Self {
        let (minus_max, row_sum) = (RowVec::splat(-NONE), RowSum::zero());
        Softmax { scale_log2, slack: p.slack, minus_max, row_sum, of_keys: None }
    }

    /// If the maximum of at least one row would grow by more than the slack, raises the maxima to a block's
    /// scores, and rescales O and the sums. After the first block, maxima rarely grow so much. If they do
    /// not, this function costs one maximum per lane and one vote, but no shuffle and no multiplication.
    ///
    /// `own` are the block's exponents; `None` stands for scores times the scale of all blocks.
    #[inline(always)]
    pub fn observe<const N: usize, const D: usize>(
        &mut self,
        s: &Acc<M, N>,
        own: Option<Exponents>,
        acc_o: &mut Acc<M, D>,
        warp: Warp,
    ) {
        let seen = s.lane_max();
        // Selects within the closures would change the order of instructions where `own` is `None`.
        let growth = match own {
            None => seen.zip(self.minus_max, |x, minus_max| fma(x, self.scale_log2, minus_max)),
            Some(own) => seen.zip(self.minus_max, |x, minus_max| own.of(x, minus_max)),
        };
        if warp.any(growth.reduce(f32::max) > self.slack) {
            let seen = seen.across(warp, f32::max);
            let new = match own {
                None => seen.zip(self.minus_max, |x, old| old.min(-x * self.scale_log2)),
                Some(own) => seen.zip(self.minus_max, |x, old| old.min(-own.of(x, 0.0))),
            };
            let rescale = new.zip(self.minus_max, |new, old| ex2(new - old));
            self.minus_max = new;
            self.row_sum.scale(&rescale);
            acc_o.scale_rows(&rescale);
        }
    }

    /// One part of P = exp2(S - max), as the left operand of P V.
    #[inline(always)]
    pub fn exp<E: Mma, const N: usize>(
        &self,
        s: &Acc<M, N>,
        own: Option<Exponents>,
        p: &mut AFrag<E, M, N>,
        part: Part,
    ) {
        match own {
            None => s.map_to_operand(p, part, |x, row| ex2(fma(x, self.scale_log2, self.minus_max[row]))),
            Some(own) => s.map_to_operand(p, part, |x, row| ex2(own.of(x, self.minus_max[row]))),
        }
    }

    /// Adds one part of P to the row sums.
    #[inline(always)]
    pub fn sum<E: Mma, const N: usize>(&mut self, p: &AFrag<E, M, N>, part: Part, warp: Warp) {
        self.row_sum.add(p, part, warp)
    }

    /// The state, for another warp that merges it.
    #[inline(always)]
    pub fn state(&self) -> (RowVec<M>, RowSum<M>) {
        (self.minus_max, self.row_sum)
    }

    /// Merges the state of another warp, which saw other keys of the same rows (FlashDecoding's combine,
    /// within a block). The merged O is a weighted sum. Returns the weight of this warp's O, and the weight
    /// of the other warp's O.
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

    /// Adds an attention sink: one more key with natural logit `sink` ([`finite_logit`]) and value 0. The
    /// kernel adds the sink at the end, so probabilities keep their precision even if the sink is large.
    #[inline(always)]
    pub fn add_sink<const D: usize>(&mut self, sink: f32, acc_o: &mut Acc<M, D>) {
        let logit = sink * LOG2_E;
        let (old, sum) = (self.minus_max, self.row_sum.total());
        let new = old.map(|minus_max| minus_max.min(-logit));
        let rescale = new.zip(old, |new, old| ex2(new - old));
        (self.minus_max, self.of_keys) = (new, Some(old));
        self.row_sum.scale(&rescale);
        self.row_sum.add_to_each(&new.map(|minus_max| ex2(logit + minus_max)));
        // For a row that saw no key, O may be 0 times infinity.
        acc_o.scale_or_clear_rows(&rescale.zip(sum, |factor, sum| if sum == 0.0 { -1.0 } else { factor }));
    }

    /// Divides O by the row sums. A row that saw no key becomes 0, whatever its O is (it may be 0 times
    /// infinity). Such rows are rare, and a select per element would cost as much as the division.
    #[inline(always)]
    pub fn normalise<const D: usize>(&self, acc_o: &mut Acc<M, D>, warp: Warp) {
        let factors = self.row_sum.total().map(|x| if x == 0.0 { -1.0 } else { rcp(x) });
        match warp.any(factors.reduce(f32::min) < 0.0) {
            true => acc_o.scale_or_clear_rows(&factors),
            false => acc_o.scale_rows(&factors),
        }
    }

    /// The largest scaled score of each row, without sinks; -inf for a row that saw no key. It is exact if
    /// there is no slack.
    #[inline(always)]
    pub fn max_logits(&self) -> RowVec<M> {
        let minus_max = self.of_keys.unwrap_or(self.minus_max);
        minus_max.map(|x| if x == -NONE { f32::NEG_INFINITY } else { -x * LN_2 })
    }

    /// Log-sum-exp of each row's scaled scores, natural logarithm; -inf for a row that saw no key.
    #[inline(always)]
    pub fn lse(&self) -> RowVec<M> {
        self.row_sum.total().zip(self.minus_max, |sum, minus_max| (lg2(sum) - minus_max) * LN_2)
    }
}
