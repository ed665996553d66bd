//! `mma.sync` on 16-bit floats: converts fragments to matrices, and multiplies in three precisions.

use std::array::from_fn;

use crate::{
    MmaArch, MmaMode,
    decode::float::{from_bf16, from_f16, halves, pack, to_f16},
    op::{Element, Mma},
    regs::{FULL, Regs, Row32},
};

/// Eight rows of eight numbers, which one register of each lane holds in 16-bit elements.
type Block = [[f32; 8]; 8];
/// A: 16 rows of the first eight columns, then of the last eight columns.
type A = [[[f32; 8]; 16]; 2];
/// B: the first eight rows, then the last eight rows.
type B = [Block; 2];
/// C and D.
type C = [[f32; 8]; 16];

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
    let (mut a, mut b, mut c) = (A::default(), B::default(), C::default());
    for (r, &reg) in mma.a.iter().enumerate() {
        // From one register of a fragment to the next, the place in the matrix goes down by 8 rows first, and
        // then right by 8 columns.
        a[r / 2 % 2][r % 2 * 8..][..8].copy_from_slice(&numbers(regs.row32(reg, FULL), mma.element));
    }
    for (b, &reg) in b.iter_mut().zip(&mma.b) {
        let columns = numbers(regs.row32(reg, FULL), mma.element);
        *b = from_fn(|k| from_fn(|n| columns[n][k]));
    }
    if mma.half {
        for (r, &reg) in mma.c.iter().enumerate() {
            c[r % 2 * 8..][..8].copy_from_slice(&numbers(regs.row32(reg, FULL), Element::F16));
        }
    } else {
        // Of two registers, the first one holds the even columns of 8 rows.
        for (half, pair) in mma.c.as_chunks::<2>().0.iter().enumerate() {
            let rows = pair.map(|reg| regs.row32(reg, FULL));
            let block: Block = from_fn(|row| from_fn(|n| f32::from_bits(rows[n % 2][4 * row + n / 2])));
            c[half % 2 * 8..][..8].copy_from_slice(&block);
        }
    }
    match mode {
        MmaMode::Fast => fast(&a, &b, &mut c, mma.k),
        MmaMode::F64 => wide(&a, &b, &mut c, mma.k),
        MmaMode::Exact(arch) => exact(&a, &b, &mut c, mma.k, arch),
    }
    for (r, &reg) in mma.d.iter().enumerate() {
        let row: Row32 = if mma.half {
            let c = &c[r % 2 * 8..];
            from_fn(|lane| pack([0, 1].map(|i| to_f16(c[lane / 4][lane % 4 * 2 + i]))))
        } else {
            let c = &c[r / 2 % 2 * 8..][..8];
            let column = |first: usize| from_fn(|lane| c[lane / 4][lane % 4 * 2 + first].to_bits());
            if r % 2 == 0 { column(0) } else { column(1) }
        };
        regs.set32(reg, FULL, &row);
    }
}

/// The numbers of an 8x8 matrix of 16-bit elements in one register of each lane. Lane `4 r + c` holds columns
/// `2 c` and `2 c + 1` of row `r`, so the lanes hold the rows in order.
#[inline(always)]
fn numbers(lanes: &Row32, element: Element) -> Block {
    let mut bits = [0; 64];
    for (pair, &lane) in bits.as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
        *pair = halves(lane);
    }
    let mut block = Block::default();
    let all = block.as_flattened_mut().iter_mut().zip(bits);
    match element {
        Element::F16 => all.for_each(|(x, bits)| *x = from_f16(bits)),
        Element::Bf16 => all.for_each(|(x, bits)| *x = from_bf16(bits)),
    }
    block
}

/// Computes a chain of fused multiply-adds in f32, in order of k. Products of 16-bit floats are exact in f32,
/// so a fused operation has the same result as a product and a sum.
#[inline(always)]
fn fast(a: &A, b: &B, c: &mut C, k: usize) {
    for (a, b) in a.iter().zip(b).take(k / 8) {
        for (a, c) in a.iter().zip(&mut *c) {
            for (x, b) in a.iter().zip(b) {
                for (sum, y) in c.iter_mut().zip(b) {
                    *sum += x * y;
                }
            }
        }
    }
}

/// The factors of the products for one element of C, in order of k.
#[inline(always)]
fn factors(a: &A, b: &B, [row, column]: [usize; 2], k: usize) -> impl Iterator<Item = (f32, f32)> + Clone {
    (0..k).map(move |i| (a[i / 8][row][i % 8], b[i / 8][i % 8][column]))
}

fn wide(a: &A, b: &B, c: &mut C, k: usize) {
    for (row, c) in c.iter_mut().enumerate() {
        for (column, value) in c.iter_mut().enumerate() {
            let products = factors(a, b, [row, column], k).map(|(x, y)| f64::from(x) * f64::from(y));
            *value = products.fold(f64::from(*value), |sum, product| sum + product) as f32;
        }
    }
}

/// Computes with the arithmetic of tensor cores: all terms of a step are aligned to the largest exponent,
/// truncated, added exactly, and rounded toward zero.
fn exact(a: &A, b: &B, c: &mut C, k: usize, arch: MmaArch) {
    let (fraction, step) = match arch {
        MmaArch::Ampere => (24, 8),
        MmaArch::Hopper => (25, 16),
    };
    for (row, c) in c.iter_mut().enumerate() {
        for (column, value) in c.iter_mut().enumerate() {
            for start in (0..k).step_by(step) {
                let terms = factors(a, b, [row, column], k).skip(start).take(step);
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
