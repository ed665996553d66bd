//! Softcap (Gemma Team, 2024): scores become `cap * tanh(score * scale / cap)`.
use core::f32::consts::LOG2_E;
use cuda_std::math::{ex2, fma, rcp};
use tile::mma::{Acc, ColAcc};

/// Up to this cap, the absolute precision of `tanh` suffices: the error of exponents is below 2e-4.
const MODEST: f32 = 1024.0;

/// A warp's scores, transposed or not.
pub trait MapScores {
    /// Replaces each score `s` by `f(s)`.
    fn map(&mut self, f: impl Fn(f32) -> f32);
}
impl<const M: usize, const N: usize> MapScores for Acc<M, N> {
    #[inline(always)]
    fn map(&mut self, f: impl Fn(f32) -> f32) {
        self.map(f)
    }
}
impl<const R: usize, const G: usize> MapScores for ColAcc<R, G> {
    #[inline(always)]
    fn map(&mut self, f: impl Fn(f32) -> f32) {
        self.map(f)
    }
}

/// If there is a cap, replaces scores by their hyperbolic tangents, whose scale is `cap * log2 e`. `softcap`
/// and `scale_log2` are the kernel's parameters.
#[inline(always)]
pub fn softcap(scores: &mut impl MapScores, softcap: f32, scale_log2: f32) {
    if softcap == 0.0 {
        return;
    }
    if scale_log2 <= MODEST * LOG2_E {
        scores.map(|x| tanh(x * softcap));
    } else {
        scores.map(|x| tanh_relative(x * softcap));
    }
}

/// `tanh(x)`, with an absolute error of f32's precision. `tanh.approx` has an error of 2^-11, which a softcap
/// of 50 would turn into an error of 2 % in a probability.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 * rcp(1.0 + ex2(x * (2.0 * LOG2_E)))
}

/// `tanh(x)`, with a relative error of 2^-20, because a large cap multiplies small tangents. Near 0, it adds
/// up the Taylor series; the first omitted term is below 6e-8 of the sum.
#[inline(always)]
fn tanh_relative(x: f32) -> f32 {
    let y = x * x;
    let series = fma(fma(fma(-17.0 / 315.0, y, 2.0 / 15.0), y, -1.0 / 3.0) * y, x, x);
    if y < 0.04 { series } else { tanh(x) }
}
