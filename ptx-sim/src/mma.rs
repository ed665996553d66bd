//! `mma.sync` on 16-bit floats: converts fragments to matrices, and multiplies in three precisions.

use crate::{
    MmaArch, MmaMode,
    decode::float::{from_bf16, from_f16, halves, pack, to_f16},
    op::{Element, Mma},
    regs::{FULL, LANES, Regs, Row32},
};

/// Number of rows of A and D.
const M: usize = 16;
/// Number of columns of B and D.
const N: usize = 8;
/// Largest depth of a product.
const K: usize = 16;

/// Executes `mma` for a full warp.
pub(crate) fn execute(mma: &Mma, regs: &mut Regs, mode: MmaMode) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function needs.
        return unsafe { execute_wide(mma, regs, mode) };
    }
    execute_any(mma, regs, mode);
}

/// Like [`execute_any`], with vectors of eight numbers. This code is 2.5 times as fast.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn execute_wide(mma: &Mma, regs: &mut Regs, mode: MmaMode) {
    execute_any(mma, regs, mode);
}

#[inline(always)]
fn execute_any(mma: &Mma, regs: &mut Regs, mode: MmaMode) {
    let mut a = [[0f32; K]; M];
    let mut b = [[0f32; N]; K];
    let mut c = [[0f32; N]; M];
    for (r, &reg) in mma.a.iter().enumerate() {
        // From one register of a fragment to the next, the place in the matrix goes down by 8 rows first, and
        // then right by 8 columns.
        let (row, column) = (r % 2 * 8, r / 2 * 8);
        let values = unpack(regs.row32(reg, FULL), mma.element);
        for (lane, [low, high]) in pairs(&values) {
            a[(row + lane / 4) % M][(column + lane % 4 * 2) % K] = low;
            a[(row + lane / 4) % M][(column + lane % 4 * 2 + 1) % K] = high;
        }
    }
    for (r, &reg) in mma.b.iter().enumerate() {
        let values = unpack(regs.row32(reg, FULL), mma.element);
        for (lane, [low, high]) in pairs(&values) {
            b[(r * 8 + lane % 4 * 2) % K][lane / 4] = low;
            b[(r * 8 + lane % 4 * 2 + 1) % K][lane / 4] = high;
        }
    }
    for (r, &reg) in mma.c.iter().enumerate() {
        let row = regs.row32(reg, FULL);
        for (lane, &value) in row.iter().enumerate() {
            if mma.half {
                let [low, high] = halves(value);
                c[(r * 8 + lane / 4) % M][lane % 4 * 2] = from_f16(low);
                c[(r * 8 + lane / 4) % M][lane % 4 * 2 + 1] = from_f16(high);
            } else {
                c[(r / 2 * 8 + lane / 4) % M][lane % 4 * 2 + r % 2] = f32::from_bits(value);
            }
        }
    }
    match mode {
        MmaMode::Fast => fast(&a, &b, &mut c, mma.k),
        MmaMode::F64 => wide(&a, &b, &mut c, mma.k),
        MmaMode::Exact(arch) => exact(&a, &b, &mut c, mma.k, arch),
    }
    for (r, &reg) in mma.d.iter().enumerate() {
        let mut row = [0; LANES];
        for (lane, value) in row.iter_mut().enumerate() {
            *value = if mma.half {
                let c = &c[(r * 8 + lane / 4) % M];
                pack([0, 1].map(|i| to_f16(c[lane % 4 * 2 + i])))
            } else {
                c[(r / 2 * 8 + lane / 4) % M][lane % 4 * 2 + r % 2].to_bits()
            };
        }
        regs.set32(reg, FULL, &row);
    }
}

/// The two numbers that each lane has.
#[inline(always)]
fn pairs(values: &[[f32; LANES]; 2]) -> impl Iterator<Item = (usize, [f32; 2])> {
    let [low, high] = values;
    low.iter().zip(high).map(|(&low, &high)| [low, high]).enumerate()
}

#[inline(always)]
fn unpack(row: &Row32, element: Element) -> [[f32; LANES]; 2] {
    let mut out = [[0.0; LANES]; 2];
    match element {
        Element::F16 => {
            for (lane, &value) in row.iter().enumerate() {
                let [low, high] = halves(value);
                (out[0][lane], out[1][lane]) = (from_f16(low), from_f16(high));
            }
        }
        Element::Bf16 => {
            for (lane, &value) in row.iter().enumerate() {
                let [low, high] = halves(value);
                (out[0][lane], out[1][lane]) = (from_bf16(low), from_bf16(high));
            }
        }
    }
    out
}

/// Computes a chain of fused multiply-adds in f32, in order of k. Products of 16-bit floats are exact in f32,
/// so a fused operation has the same result as a product and a sum.
#[inline(always)]
fn fast(a: &[[f32; K]; M], b: &[[f32; N]; K], c: &mut [[f32; N]; M], k: usize) {
    for (a, c) in a.iter().zip(c) {
        for (x, b) in a.iter().zip(b).take(k) {
            for (sum, y) in c.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
}

fn wide(a: &[[f32; K]; M], b: &[[f32; N]; K], c: &mut [[f32; N]; M], k: usize) {
    for (a, c) in a.iter().zip(c) {
        for (column, value) in c.iter_mut().enumerate() {
            let products = (0..k).map(|i| f64::from(a[i]) * f64::from(b[i][column]));
            *value = products.fold(f64::from(*value), |sum, product| sum + product) as f32;
        }
    }
}

/// Computes with the arithmetic of tensor cores: all terms of a step are aligned to the largest exponent,
/// truncated, added exactly, and rounded toward zero.
fn exact(a: &[[f32; K]; M], b: &[[f32; N]; K], c: &mut [[f32; N]; M], k: usize, arch: MmaArch) {
    let (fraction, step) = match arch {
        MmaArch::Ampere => (24, 8),
        MmaArch::Hopper => (25, 16),
    };
    for (a, c) in a.iter().zip(c) {
        for (column, value) in c.iter_mut().enumerate() {
            for start in (0..k).step_by(step) {
                let terms = (start..k.min(start + step)).map(|i| (a[i], b[i][column]));
                *value = dot_add(terms, *value, fraction);
            }
        }
    }
}

/// Splits `x` into sign, exponent and 24-bit significand (value = significand * 2^(exponent - 23)). The
/// exponent of zero is the smallest one.
fn split(x: f32) -> (bool, i32, u64) {
    let bits = x.to_bits();
    let (exponent, fraction) = ((bits >> 23 & 255) as i32, u64::from(bits & 0x7f_ffff));
    let significand = if exponent == 0 { fraction } else { fraction | 1 << 23 };
    (bits >> 31 != 0, exponent.max(1) - 127, significand)
}

/// Computes one step of `wgmma` for one accumulator.
pub(crate) fn dot_add_hopper(terms: impl Iterator<Item = (f32, f32)> + Clone, c: f32) -> f32 {
    dot_add(terms, c, 25)
}

/// Computes the sum of `c` and the products of `terms`, as one step of the tensor core does. The function
/// shifts every term to the largest exponent, and truncates it to `fraction` fraction bits. It then adds the
/// terms exactly, and rounds the sum toward zero. A subnormal 16-bit input has the exponent that it has as an
/// f32.
fn dot_add(terms: impl Iterator<Item = (f32, f32)> + Clone, c: f32, fraction: u32) -> f32 {
    let nan = f32::from_bits(0x7fff_ffff);
    // Only infinities and NaN among the inputs are special. Products of finite inputs are exact, even large
    // ones (seen on an H200 with bf16).
    let special = terms
        .clone()
        .filter(|(a, b)| !(a.is_finite() && b.is_finite()))
        .fold(c, |sum, (a, b)| if sum.is_finite() { a * b } else { sum + a * b });
    if !special.is_finite() {
        return if special.is_nan() { nan } else { special };
    }
    const ZERO: i32 = -133;
    let (c_sign, c_exponent, c_significand) = split(c);
    let mut top = if c == 0.0 { ZERO } else { c_exponent };
    for (a, b) in terms.clone() {
        if a != 0.0 && b != 0.0 {
            top = top.max(split(a).1 + split(b).1);
        }
    }
    if top == ZERO {
        let negative = c.is_sign_negative() && terms.clone().all(|(a, b)| (a * b).is_sign_negative());
        return if negative { -0.0 } else { 0.0 };
    }
    // Converts a term to units of 2^(top - fraction), truncated toward zero.
    let align = |sign: bool, exponent: i32, significand: u64, scale: i32| {
        let shift = exponent - scale - (top - fraction as i32);
        let units = if shift >= 0 {
            significand << shift.min(40)
        } else {
            significand.checked_shr(shift.unsigned_abs()).unwrap_or(0)
        };
        if sign { -(units as i64) } else { units as i64 }
    };
    let mut sum = align(c_sign, c_exponent, c_significand, 23);
    for (a, b) in terms {
        let ((sa, ea, ma), (sb, eb, mb)) = (split(a), split(b));
        sum += align(sa != sb, ea + eb, ma * mb, 46);
    }
    toward_zero(sum, top - fraction as i32)
}

/// The number `units * 2^exponent` as f32, rounded toward zero, or infinite if it overflows.
fn toward_zero(units: i64, exponent: i32) -> f32 {
    if units == 0 {
        return 0.0;
    }
    let (negative, magnitude) = (units < 0, units.unsigned_abs());
    let top = 63 - magnitude.leading_zeros() as i32; // position of the leading one
    let lowest = (exponent + top - 23).max(-149); // weight of the last kept bit
    let shift = lowest - exponent;
    let kept = if shift > 0 { magnitude.checked_shr(shift as u32).unwrap_or(0) } else { magnitude << -shift };
    let value = if exponent + top > 127 { f32::INFINITY } else { (kept as f64 * 2f64.powi(lowest)) as f32 };
    if negative { -value } else { value }
}
