//! What some keys make of a row, and how results of different keys are merged (FlashDecoding, Dao et al.
//! 2023): O = sum of w(i) O(i) / sum of w(i) sum(i), w(i) = 2^(max(i) - max).
use crate::softmax::NONE;
use cuda_std::math::{ex2, fma, lg2, rcp};

/// `N` columns of a row of O, not yet normalised, with the maximum (base 2) and the sum of its probabilities.
#[derive(Clone, Copy)]
pub struct Partial<const N: usize> {
    /// What the probabilities' exponents were counted from.
    pub max: f32,
    /// Their sum.
    pub sum: f32,
    /// The columns.
    pub o: [f32; N],
}

impl<const N: usize> Partial<N> {
    /// Of no keys.
    pub const NONE: Self = Partial { max: NONE, sum: 0.0, o: [0.0; N] };

    /// What is left of columns `o`, normalised, and their log-sum-exp, base 2.
    #[inline(always)]
    pub fn normal(o: [f32; N], lse: f32) -> Self {
        Partial { max: lse, sum: 1.0, o }
    }

    /// A weight that belongs to no key: its logit, base 2. Beyond all numbers it counts as the largest, which
    /// takes all weight; infinity minus itself would be none.
    #[inline(always)]
    pub fn sink(logit: f32) -> Self {
        Self::normal([0.0; N], if logit > f32::MAX { f32::MAX } else { logit })
    }

    /// This one and `others`.
    #[inline(always)]
    pub fn merge<const M: usize>(self, others: [Self; M]) -> Self {
        let max = others.iter().fold(self.max, |max, other| max.max(other.max));
        let rescale = ex2(self.max - max);
        let mut to = Partial { max, sum: self.sum * rescale, o: self.o.map(|x| x * rescale) };
        for other in &others {
            let weight = ex2(other.max - max);
            to.sum = fma(other.sum, weight, to.sum);
            for (o, theirs) in to.o.iter_mut().zip(&other.o) {
                *o = fma(*theirs, weight, *o);
            }
        }
        to
    }

    /// O, normalised, and its log-sum-exp, base 2; 0 (of whatever O, which may be 0 times infinity) and minus
    /// infinity where no key was seen.
    #[inline(always)]
    pub fn normalised(self) -> ([f32; N], f32) {
        let scale = rcp(self.sum);
        (self.o.map(|x| if self.sum == 0.0 { 0.0 } else { x * scale }), self.max + lg2(self.sum))
    }
}
