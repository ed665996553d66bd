//! The partial result of a row over some keys, and the merge of partial results (FlashDecoding, Dao et al.
//! 2023): O = sum of w(i) O(i) / sum of w(i) sum(i), w(i) = 2^(max(i) - max).
use crate::softmax::NONE;
use cuda_std::math::{ex2, fma, lg2, rcp};

/// `N` columns of a row of O, not yet normalised, with the maximum (to base 2) and the sum of the row's
/// probabilities.
#[derive(Clone, Copy)]
pub struct Partial<const N: usize> {
    /// The maximum (to base 2) that is subtracted from the exponents of the probabilities.
    pub max: f32,
    /// The sum of the probabilities.
    pub sum: f32,
    /// The columns of O.
    pub o: [f32; N],
}

impl<const N: usize> Partial<N> {
    /// The partial result over no keys.
    pub const NONE: Self = Partial { max: NONE, sum: 0.0, o: [0.0; N] };

    /// The partial result whose normalised columns are `o` and whose log-sum-exp to base 2 is `lse`.
    #[inline(always)]
    pub fn normal(o: [f32; N], lse: f32) -> Self {
        Partial { max: lse, sum: 1.0, o }
    }

    /// The partial result of an attention sink, which has a weight but no value. `logit` is to base 2. An
    /// infinite logit counts as the largest number, which takes all weight: infinity minus itself would be
    /// NaN.
    #[inline(always)]
    pub fn sink(logit: f32) -> Self {
        Self::normal([0.0; N], if logit > f32::MAX { f32::MAX } else { logit })
    }

    /// Merges this partial result and `others`.
    #[inline(always)]
    pub fn merge<const M: usize>(self, others: [Self; M]) -> Self {
        self.rescaled(others.iter().fold(self.max, |max, other| max.max(other.max))).plus(others)
    }

    /// This partial result relative to the maximum `max`, which must not be smaller than its own.
    #[inline(always)]
    pub fn rescaled(self, max: f32) -> Self {
        let rescale = ex2(self.max - max);
        Partial { max, sum: self.sum * rescale, o: self.o.map(|x| x * rescale) }
    }

    /// Adds `others`, whose maxima must not exceed this partial result's maximum.
    #[inline(always)]
    pub fn plus<const M: usize>(self, others: [Self; M]) -> Self {
        let mut to = self;
        for other in &others {
            let weight = ex2(other.max - to.max);
            to.sum = fma(other.sum, weight, to.sum);
            for (o, theirs) in to.o.iter_mut().zip(&other.o) {
                *o = fma(*theirs, weight, *o);
            }
        }
        to
    }

    /// Normalised O and its log-sum-exp to base 2. For a row that saw no key, O becomes 0, whatever it was
    /// (it may be 0 times infinity), and the log-sum-exp becomes minus infinity.
    #[inline(always)]
    pub fn normalised(self) -> ([f32; N], f32) {
        let scale = rcp(self.sum);
        (self.o.map(|x| if self.sum == 0.0 { 0.0 } else { x * scale }), self.max + lg2(self.sum))
    }
}
