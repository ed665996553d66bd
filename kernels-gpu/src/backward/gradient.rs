//! The arithmetic of P and dS, whose rows are queries, or, in transposed scores, keys.
use crate::capped::Capped;
use crate::variant::Scores;
use cuda_std::math::{ex2, fma};
use tile::beside::Beside;
use tile::mma::{AFrag, Acc, Mma};

/// P = 2^(S scale - LSE) of changed and masked scores, as the left operand of dV = P^T dO. Each score becomes
/// P times the derivative of its modification. `factors` are what [`Scores::differentiate`] has returned.
#[inline(always)]
pub fn probabilities<E: Mma, S: Scores, const M: usize, const N: usize>(
    p: &impl Capped,
    scores: &mut Acc<M, N>,
    factors: Option<Acc<M, N>>,
    minus_lse: &impl Beside<M, N>,
) -> AFrag<E, M, N> {
    let scale_log2 = S::scale_log2(p);
    let probs = scores.split_beside(minus_lse, |s, minus_lse| {
        // Behind the last query, where padding has no weight, a function's score may be infinite or NaN.
        let s = if S::CHANGES_EACH && minus_lse == f32::NEG_INFINITY { 0.0 } else { s };
        let prob = ex2(fma(s, scale_log2, minus_lse));
        [prob, S::through(p, s, prob)]
    });
    if let Some(factors) = factors {
        // Where the mask hides a key, a function's derivative may be infinite.
        scores.zip(&factors, |prob, factor| if prob == 0.0 { 0.0 } else { prob * factor });
    }
    probs
}

/// dS = P (dP - delta), as the left operand of the products that give dQ and dK. `probs` are the values that
/// [`probabilities`] leaves.
#[inline(always)]
pub fn of_scores<E: Mma, const M: usize, const N: usize>(
    dp: &Acc<M, N>,
    probs: &Acc<M, N>,
    delta: &impl Beside<M, N>,
) -> AFrag<E, M, N> {
    dp.join_beside(probs, delta, |dp, prob, delta| (dp - delta) * prob)
}

/// dS of the changed scores `scores`, in f32, in the place of dP: what is added to a score has this gradient.
/// It is 0 where the mask hides a key, whatever dP is there.
#[inline(always)]
pub fn of_changed<S: Scores, const M: usize, const N: usize>(
    p: &impl Capped,
    mut dp: Acc<M, N>,
    mut scores: Acc<M, N>,
    minus_lse: &impl Beside<M, N>,
    delta: &impl Beside<M, N>,
) -> Acc<M, N> {
    let scale_log2 = S::scale_log2(p);
    scores.zip_beside(minus_lse, |s, minus_lse| {
        // As in `probabilities`, behind the last query.
        let s = if S::CHANGES_EACH && minus_lse == f32::NEG_INFINITY { 0.0 } else { s };
        ex2(fma(s, scale_log2, minus_lse))
    });
    dp.zip_beside(delta, |dp, delta| dp - delta);
    dp.zip(&scores, |x, prob| if prob == 0.0 { 0.0 } else { x * prob });
    dp
}

/// [`of_scores`] of the probabilities that multiply dO, which are rounded. Only for scores without
/// modification.
#[inline(always)]
pub fn of_rounded<E: Mma, const M: usize, const N: usize>(
    dp: &Acc<M, N>,
    probs: &AFrag<E, M, N>,
    delta: &impl Beside<M, N>,
) -> AFrag<E, M, N> {
    dp.join_rounded(probs, delta, |dp, prob, delta| (dp - delta) * prob)
}
