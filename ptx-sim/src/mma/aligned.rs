//! The sums of `wgmma` on e4m3 as Hopper rounds them, with whole numbers of 32 bits, for many accumulators at
//! once.

use super::sums::dot_add_hopper_e4m3;

/// The depth of one product.
const DEPTH: usize = 32;
/// Number of accumulators that are computed together.
const TOGETHER: usize = 8;
/// The exponent of zero. The exponents of products with a zero do not count.
const OF_ZERO: i32 = -1000;
/// An exponent below those of all numbers.
const LEAST: i32 = -133;
/// Number of fraction bits of a sum.
const FRACTION: i32 = 13;

/// Numbers of e4m3: `significand * 2^(exponent - 3)`. A significand has four bits and a sign.
#[derive(Clone, Copy)]
struct Parts<const N: usize> {
    significand: [i32; N],
    exponent: [i32; N],
}

impl<const N: usize> Parts<N> {
    #[inline(always)]
    fn of(x: &[f32; N]) -> Self {
        let significand = x.map(|x| {
            let magnitude = (x.to_bits() >> 20 & 7 | 8) as i32;
            let signed = if x.is_sign_negative() { -magnitude } else { magnitude };
            if x == 0.0 { 0 } else { signed }
        });
        let exponent = |x: f32| (x.to_bits() >> 23 & 255) as i32 - 127;
        Parts { significand, exponent: x.map(|x| if x == 0.0 { OF_ZERO } else { exponent(x) }) }
    }
}

/// Adds to `c[row][column]` the sum of products of `a[k][row]` and `b[k][column]`, which are numbers of e4m3.
pub(crate) fn add_hopper_e4m3(a: &[f32], b: &[f32], c: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function needs.
        return unsafe { add_wide(a, b, c) };
    }
    add_any(a, b, c);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_wide(a: &[f32], b: &[f32], c: &mut [f32]) {
    add_any(a, b, c);
}

#[inline(always)]
fn add_any(a: &[f32], b: &[f32], c: &mut [f32]) {
    let (rows, columns) = (a.len() / DEPTH, b.len() / DEPTH);
    let finite = a.iter().chain(b).all(|x| x.is_finite());
    // The parts of B, for each group of columns that is computed together.
    let group = |at: usize| -> [Parts<TOGETHER>; DEPTH] {
        std::array::from_fn(|k| Parts::of(&std::array::from_fn(|i| b[k * columns + at * TOGETHER + i])))
    };
    let groups: Vec<_> = (0..columns / TOGETHER).map(group).collect();
    for (row, c) in c.chunks_exact_mut(columns).enumerate() {
        let of_row: [f32; DEPTH] = std::array::from_fn(|k| a[k * rows + row]);
        let one = |column: usize, c: f32| {
            let terms = std::array::from_fn::<_, DEPTH, _>(|k| (of_row[k], b[k * columns + column]));
            dot_add_hopper_e4m3(terms.into_iter(), c)
        };
        let a = Parts::of(&of_row);
        for (at, (group, c)) in groups.iter().zip(c.as_chunks_mut::<TOGETHER>().0).enumerate() {
            let (sums, known) = sums(&a, group, c);
            for (i, c) in c.iter_mut().enumerate() {
                *c = if finite && known[i] { sums[i] } else { one(at * TOGETHER + i, *c) };
            }
        }
    }
}

/// Computes the sums for finite numbers, and says which of them are known: the others are zeros whose signs
/// depend on the terms, or their accumulators are not finite.
#[inline(always)]
fn sums(
    a: &Parts<DEPTH>,
    b: &[Parts<TOGETHER>; DEPTH],
    c: &[f32; TOGETHER],
) -> ([f32; TOGETHER], [bool; TOGETHER]) {
    let exponent = |c: f32| ((c.to_bits() >> 23 & 255) as i32).max(1) - 127;
    let mut top = c.map(|c| if c == 0.0 { LEAST } else { exponent(c) });
    for (a, b) in a.exponent.iter().zip(b) {
        for (top, b) in top.iter_mut().zip(&b.exponent) {
            *top = (*top).max(a + b);
        }
    }
    // Every term is in units of 2^(top - FRACTION), truncated toward zero. A product of significands has
    // units of 2^-6.
    let mut sum: [i32; TOGETHER] = std::array::from_fn(|i| {
        let bits = c[i].to_bits();
        let significand = (bits & 0x7f_ffff | u32::from(bits & 0x7f80_0000 != 0) << 23) as i32;
        let units = significand >> (top[i] - exponent(c[i]) + 23 - FRACTION).clamp(0, 31);
        if bits >> 31 != 0 { -units } else { units }
    });
    for (k, b) in b.iter().enumerate() {
        for (i, sum) in sum.iter_mut().enumerate() {
            let product = a.significand[k] * b.significand[i];
            let shift = (top[i] - a.exponent[k] - b.exponent[i]).min(31);
            let units = (product.abs() << (FRACTION - 6)) >> shift;
            *sum += if product < 0 { -units } else { units };
        }
    }
    // The sums have at most 20 bits, so their conversion and both factors are exact.
    let value = |i: usize| {
        let scale = |exponent: i32| f32::from_bits(((exponent + 127) as u32) << 23);
        let value = sum[i] as f32 * scale(-FRACTION) * scale(top[i].max(-126));
        if value.is_finite() { f32::from_bits(value.to_bits() & !0x3ff) } else { value }
    };
    (
        std::array::from_fn(value),
        std::array::from_fn(|i| (top[i] != LEAST || c[i].to_bits() == 0) && c[i].is_finite()),
    )
}
