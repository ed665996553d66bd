//! `mma.sync`: converts fragments to matrices, and multiplies in three precisions. Here are 16-bit floats.

mod aligned;
mod bytes;
mod sums;

use std::array::from_fn;

use crate::{
    MmaArch, MmaMode,
    decode::float::{from_bf16, from_f16, halves, pack, to_f16},
    op::{Element, Mma, MmaKind},
    regs::{FULL, Regs, Row32},
};
pub(crate) use aligned::add_hopper_e4m3;
use sums::dot_add;
pub(crate) use sums::dot_add_hopper;

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
    match mma.kind {
        MmaKind::Half { element, k, half } => execute_half(mma, (element, k, half), regs, mode),
        MmaKind::E4m3 => bytes::execute_e4m3(mma, regs, mode),
        MmaKind::S8 => bytes::execute_s8(mma, regs),
    }
}

#[inline(always)]
fn execute_half(mma: &Mma, (element, k, half): (Element, usize, bool), regs: &mut Regs, mode: MmaMode) {
    let (mut a, mut b, mut c) = (A::default(), B::default(), C::default());
    for (r, &reg) in mma.a.iter().enumerate() {
        // From one register of a fragment to the next, the place in the matrix goes down by 8 rows first, and
        // then right by 8 columns.
        a[r / 2 % 2][r % 2 * 8..][..8].copy_from_slice(&numbers(regs.row32(reg, FULL), element));
    }
    for (b, &reg) in b.iter_mut().zip(&mma.b) {
        let columns = numbers(regs.row32(reg, FULL), element);
        *b = from_fn(|k| from_fn(|n| columns[n][k]));
    }
    if half {
        for (r, &reg) in mma.c.iter().enumerate() {
            c[r % 2 * 8..][..8].copy_from_slice(&numbers(regs.row32(reg, FULL), Element::F16));
        }
    } else {
        // Of two registers, the first one holds the even columns of 8 rows.
        for (at, pair) in mma.c.as_chunks::<2>().0.iter().enumerate() {
            let rows = pair.map(|reg| regs.row32(reg, FULL));
            let block: Block = from_fn(|row| from_fn(|n| f32::from_bits(rows[n % 2][4 * row + n / 2])));
            c[at % 2 * 8..][..8].copy_from_slice(&block);
        }
    }
    match mode {
        MmaMode::Fast => fast(&a, &b, &mut c, k),
        MmaMode::F64 => wide(&a, &b, &mut c, k),
        MmaMode::Exact(arch) => exact(&a, &b, &mut c, k, arch),
    }
    for (r, &reg) in mma.d.iter().enumerate() {
        let row: Row32 = if half {
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
                *value = dot_add(terms, *value, fraction, i32::MIN);
            }
        }
    }
}
