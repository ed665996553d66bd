//! Compares `mma` on bytes with plain products, and with the published rounding of tensor cores.

use common::hopper::e4m3;
use ptx_sim::{MmaArch, MmaMode};

use crate::warp::warp;

/// The accumulators of `mma.m16n8k32` after the product, as `[row][column]`. `types` are those of D, A, B and
/// C, and the functions return the bits of an element.
fn product(
    types: [&str; 4],
    a: impl Fn(usize, usize) -> u8,
    b: impl Fn(usize, usize) -> u8,
    c: impl Fn(usize, usize) -> u32,
    mode: MmaMode,
) -> [[u32; 8]; 16] {
    let mut body = "mul.wide.u32 w, t, 40; add.u64 I, I, w;".to_string();
    for (i, name) in ["%a0", "%a1", "%a2", "%a3", "%b0", "%b1", "d0", "d1", "d2", "d3"].iter().enumerate() {
        body += &format!("ld.global.u32 {name}, [I+{}];", 4 * i);
    }
    body += &format!(
        "mma.sync.aligned.m16n8k32.row.col.{} {{d0, d1, d2, d3}}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, \
         {{d0, d1, d2, d3}};",
        types.join(".")
    );
    let accumulators = |lane: usize| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        [[row, column], [row, column + 1], [row + 8, column], [row + 8, column + 1]]
    };
    let mut input = Vec::new();
    for lane in 0..32 {
        let (group, four) = (lane / 4, lane % 4 * 4);
        for (row, k) in [(group, four), (group + 8, four), (group, four + 16), (group + 8, four + 16)] {
            input.push(u32::from_le_bytes([0, 1, 2, 3].map(|i| a(row, k + i))));
        }
        for k in [four, four + 16] {
            input.push(u32::from_le_bytes([0, 1, 2, 3].map(|i| b(k + i, group))));
        }
        input.extend(accumulators(lane).map(|[row, column]| c(row, column)));
    }
    let mut found = [[0; 8]; 16];
    for (lane, d) in warp(&body, &input, mode).iter().enumerate() {
        for ([row, column], bits) in accumulators(lane).into_iter().zip(d) {
            found[row][column] = *bits;
        }
    }
    found
}

const E4M3: [&str; 4] = ["f32", "e4m3", "e4m3", "f32"];
const S8: [&str; 4] = ["s32", "s8", "s8", "s32"];
const MODES: [MmaMode; 4] =
    [MmaMode::Fast, MmaMode::F64, MmaMode::Exact(MmaArch::Ampere), MmaMode::Exact(MmaArch::Hopper)];

/// The inputs are small integers, so that every mode gives the exact result.
#[test]
fn products_of_small_integers_are_exact() {
    let value = |i: usize| (i * 37 % 11) as i32 - 5;
    let a = |row: usize, k: usize| value(row * 32 + k);
    let b = |k: usize, column: usize| value(1000 + k * 8 + column);
    let c = |row: usize, column: usize| value(5000 + row * 8 + column);
    let float = |x: i32| e4m3(x as f32);
    for mode in MODES {
        let floats = product(
            E4M3,
            |r, k| float(a(r, k)),
            |k, n| float(b(k, n)),
            |r, n| (c(r, n) as f32).to_bits(),
            mode,
        );
        let integers = product(S8, |r, k| a(r, k) as u8, |k, n| b(k, n) as u8, |r, n| c(r, n) as u32, mode);
        for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
            let sum = c(row, column) + (0..32).map(|k| a(row, k) * b(k, column)).sum::<i32>();
            assert_eq!(f32::from_bits(floats[row][column]), sum as f32, "{mode:?} {row} {column}");
            assert_eq!(integers[row][column] as i32, sum, "{mode:?} {row} {column}");
        }
    }
}

/// Sums of s8 wrap, as accumulators that begin with the bits of a float must.
#[test]
fn sums_of_integers_wrap() {
    let all = product(S8, |_, _| 0x80, |_, _| 0x80, |_, _| i32::MAX as u32, MmaMode::Fast);
    assert_eq!(all[15][7] as i32, i32::MAX.wrapping_add(32 << 14));
}

/// Ada aligns the terms of 16 products to the largest exponent, and keeps 13 fraction bits.
#[test]
fn sums_of_e4m3_keep_13_bits() {
    let ada = MmaMode::Exact(MmaArch::Ampere);
    let hopper = MmaMode::Exact(MmaArch::Hopper);
    // Each product is 1. The accumulator's unit is 2 from 2^14 on.
    let ones = |c: f32, mode| {
        f32::from_bits(product(E4M3, |_, _| e4m3(1.0), |_, _| e4m3(1.0), |_, _| c.to_bits(), mode)[3][5])
    };
    assert_eq!(ones(8192.0, ada), 8192.0 + 32.0);
    assert_eq!(ones(16384.0, ada), 16384.0);
    assert_eq!(ones(-16384.0, ada), -16384.0);
    assert_eq!(ones(16384.0, hopper), 16384.0 + 32.0, "products of f16, which keep 25 bits");
    // A product of the smallest subnormal and 1 is 2^-9, and its exponent counts as -6.
    let subnormal = |c: f32| {
        let a = |row: usize, k: usize| u8::from((row, k) == (0, 0));
        f32::from_bits(product(E4M3, a, |_, _| e4m3(1.0), |_, _| c.to_bits(), ada)[0][0])
    };
    let (term, unit) = (2f32.powi(-9), 2f32.powi(-19));
    assert_eq!(subnormal(unit), term + unit);
    assert_eq!(subnormal(unit / 2.0), term, "less than 13 bits behind 2^-6");
    for mode in [MmaMode::Fast, ada, hopper] {
        let all = product(E4M3, |_, k| if k == 7 { 0x7f } else { 0 }, |_, _| e4m3(1.0), |_, _| 0, mode);
        assert!(f32::from_bits(all[0][0]).is_nan(), "{mode:?}");
    }
}
