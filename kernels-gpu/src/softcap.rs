//! Softcap (Gemma Team, 2024): scores become `cap * tanh(score * scale / cap)`.
use core::f32::consts::LOG2_E;
use cuda_std::math::{ex2, fma, rcp};
use spec::FwdParams;
use tile::Acc;

/// Up to this cap, absolute precision of `tanh` is enough: an exponent is wrong by less than 2e-4.
const MODEST: f32 = 1024.0;

/// The scores' hyperbolic tangents, if a cap is asked for; `cap * log2 e` is their scale then.
#[inline(always)]
pub fn softcap<const M: usize, const N: usize>(acc_s: &mut Acc<M, N>, p: &FwdParams) {
    if p.softcap == 0.0 {
        return;
    }
    if p.scale_log2 <= MODEST * LOG2_E {
        acc_s.map(|x| tanh(x * p.softcap));
    } else {
        acc_s.map(|x| tanh_relative(x * p.softcap));
    }
}

/// `tanh(x)` to f32's absolute precision. `tanh.approx` is wrong by 2^-11, which a softcap of 50 would turn
/// into 2 % of a probability.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 * rcp(1.0 + ex2(x * (2.0 * LOG2_E)))
}

/// `tanh(x)` to 2^-20 of itself: a large cap multiplies small tangents. Near 0 by its Taylor series, whose
/// next term is below 6e-8 of it there.
#[inline(always)]
fn tanh_relative(x: f32) -> f32 {
    let y = x * x;
    let series = fma(fma(fma(-17.0 / 315.0, y, 2.0 / 15.0), y, -1.0 / 3.0) * y, x, x);
    if y < 0.04 { series } else { tanh(x) }
}
