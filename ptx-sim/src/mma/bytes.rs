//! `mma.m16n8k32` on bytes.

use std::array::from_fn;

use super::sums::{dot_add_ada_e4m3, dot_add_hopper};
use crate::{
    MmaArch, MmaMode,
    decode::float::from_e4m3,
    op::Mma,
    regs::{FULL, Regs, Row32},
};

/// Rows of A, or columns of B.
type Lines<const N: usize> = [[u8; 32]; N];
/// C and D, as the bits of f32 or s32.
type C = [[u32; 8]; 16];

#[inline(always)]
pub(super) fn execute_e4m3(mma: &Mma, regs: &mut Regs, mode: MmaMode) {
    let (a, b) = operands(mma, regs);
    let (a, b) = (a.map(|row| row.map(from_e4m3)), b.map(|column| column.map(from_e4m3)));
    if mode == MmaMode::Fast {
        let mut across = [[0.0; 8]; 32];
        for (column, b) in b.iter().enumerate() {
            across.iter_mut().zip(b).for_each(|(row, b)| row[column] = *b);
        }
        return every(mma, regs, |c| {
            for (a, c) in a.iter().zip(c) {
                let mut sums = c.map(f32::from_bits);
                for (a, b) in a.iter().zip(&across) {
                    sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
                }
                *c = sums.map(f32::to_bits);
            }
        });
    }
    each(mma, regs, |[row, column], c| {
        let (a, b, c) = (&a[row], &b[column], f32::from_bits(c));
        let terms = a.iter().copied().zip(b.iter().copied());
        let sum = match mode {
            MmaMode::Fast | MmaMode::F64 => {
                terms.fold(f64::from(c), |sum, (a, b)| sum + f64::from(a) * f64::from(b)) as f32
            }
            MmaMode::Exact(arch) => [0, 16].into_iter().fold(c, |sum, first| {
                let terms = terms.clone().skip(first).take(16);
                match arch {
                    MmaArch::Ampere => dot_add_ada_e4m3(terms, sum),
                    // Hopper converts the elements of `mma` to f16.
                    MmaArch::Hopper => dot_add_hopper(terms, sum),
                }
            }),
        };
        sum.to_bits()
    });
}

#[inline(always)]
pub(super) fn execute_s8(mma: &Mma, regs: &mut Regs) {
    let (a, b) = operands(mma, regs);
    let (a, b) = (a.map(|row| row.map(|x| x as i8)), b.map(|column| column.map(|x| x as i8)));
    each(mma, regs, |[row, column], c| {
        let products = a[row].iter().zip(&b[column]).map(|(a, b)| i32::from(*a) * i32::from(*b));
        products.fold(c as i32, i32::wrapping_add) as u32
    });
}

/// The rows of A and the columns of B.
#[inline(always)]
fn operands(mma: &Mma, regs: &Regs) -> (Lines<16>, Lines<8>) {
    let (mut a, mut b) = ([[0; 32]; 16], [[0; 32]; 8]);
    // From one register of A to the next, the place goes down by 8 rows first, and then right by 16 bytes.
    for (r, &reg) in mma.a.iter().enumerate() {
        place(&mut a[r % 2 * 8..][..8], r / 2 * 16, regs.row32(reg, FULL));
    }
    for (r, &reg) in mma.b.iter().enumerate() {
        place(&mut b, r * 16, regs.row32(reg, FULL));
    }
    (a, b)
}

/// Writes 16 bytes of each of eight lines, from byte `first` on. Four lanes hold the bytes of a line.
#[inline(always)]
fn place(lines: &mut [[u8; 32]], first: usize, lanes: &Row32) {
    for (lane, word) in lanes.iter().enumerate() {
        lines[lane / 4][first + lane % 4 * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Replaces each accumulator by `sum` of its row and column and of its bits.
#[inline(always)]
fn each(mma: &Mma, regs: &mut Regs, sum: impl Fn([usize; 2], u32) -> u32) {
    every(mma, regs, |c| {
        for (row, c) in c.iter_mut().enumerate() {
            c.iter_mut().enumerate().for_each(|(column, c)| *c = sum([row, column], *c));
        }
    });
}

/// Replaces the accumulators by those that `f` makes of them.
#[inline(always)]
fn every(mma: &Mma, regs: &mut Regs, f: impl Fn(&mut C)) {
    let at = |r: usize, lane: usize| [r / 2 * 8 + lane / 4, lane % 4 * 2 + r % 2];
    let mut c = C::default();
    for (r, &reg) in mma.c.iter().enumerate() {
        let lanes = regs.row32(reg, FULL);
        for (lane, bits) in lanes.iter().enumerate() {
            let [row, column] = at(r, lane);
            c[row][column] = *bits;
        }
    }
    f(&mut c);
    for (r, &reg) in mma.d.iter().enumerate() {
        let lanes: Row32 = from_fn(|lane| {
            let [row, column] = at(r, lane);
            c[row][column]
        });
        regs.set32(reg, FULL, &lanes);
    }
}
