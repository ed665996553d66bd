//! Decodes floating-point instructions.
//!
//! `add`, `sub`, `mul`, `fma`, `min` and `max` are exact as PTX defines them. The approximations (`ex2`,
//! `lg2`, `rcp`, `rsqrt`, `tanh`, `sin`, `cos`) return the exact value, rounded once. Hardware may differ by
//! the few ulps that the PTX ISA allows.

use crate::regs::{Alu, Args, LANES, Lane, Regs, alu};

/// The NaN that every f32 operation returns.
const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// Flushes a subnormal number to zero of the same sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.to_bits() & 0x7f80_0000 == 0 { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// Flushes a subnormal bfloat16 number to zero.
fn flushed(x: f64) -> f64 {
    if x.abs() < f64::from(f32::MIN_POSITIVE) { 0.0f64.copysign(x) } else { x }
}

#[inline(always)]
fn canonical(x: f32) -> f32 {
    if x.is_nan() { NAN } else { x }
}

#[inline(always)]
fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// Converts binary16 to f32.
#[inline(always)]
pub(crate) fn from_f16(x: u16) -> f32 {
    // The multiplication by 2^112 moves the exponent and normalises subnormal numbers. Infinity and NaN need
    // an exponent of all ones.
    let magnitude = u32::from(x & 0x7fff);
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let bits = if magnitude >= 0x7c00 { magnitude << 13 | 0x7f80_0000 } else { scaled.to_bits() };
    f32::from_bits(bits | u32::from(x & 0x8000) << 16)
}

/// Converts bfloat16 to f32.
#[inline(always)]
pub(crate) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Converts f32 to binary16, rounded to nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let normal = (magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + (magnitude >> 13 & 1))) >> 13;
    // After the addition of 0.5, the low bits hold the subnormal result. The addition has rounded this result
    // to nearest even.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let value = if magnitude < 0x3880_0000 { subnormal } else { normal.min(0x7c00) };
    let value = if magnitude >= 0x7f80_0000 { 0x7c00 } else { value };
    if magnitude > 0x7f80_0000 { 0x7fff } else { value as u16 | sign }
}

/// Converts f32 to bfloat16, rounded to nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fff } else { rounded as u16 }
}

/// The numbers of OCP's E4M3, by the definition of E4M3.
static E4M3: [f32; 256] = {
    let (mut numbers, mut x) = ([0.0; 256], 0);
    while x < 256 {
        // The multiplication by 2^120 moves the exponent and normalises subnormal numbers.
        let magnitude = match x as u32 & 0x7f {
            0x7f => NAN,
            bits => f32::from_bits(bits << 20) * f32::from_bits(0x7b80_0000),
        };
        numbers[x] = if x < 0x80 { magnitude } else { -magnitude };
        x += 1;
    }
    numbers
};

/// Converts OCP's E4M3 to f32.
#[inline(always)]
pub(crate) fn from_e4m3(x: u8) -> f32 {
    E4M3[usize::from(x)]
}

/// Converts f32 to OCP's E4M3, rounded to nearest even. A magnitude above the largest number becomes the
/// largest number. NaN becomes 0x7f.
#[inline(always)]
pub(crate) fn to_e4m3(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let magnitude = x.abs().min(448.0);
    // Exponents below -6 belong to subnormal numbers. The distance of two subnormal numbers is the distance
    // of two numbers with exponent -6.
    let exponent = (magnitude.to_bits() >> 23).max(127 - 6);
    // The factor is 2^(3 - exponent). The addition rounds to whole numbers.
    let eighths = magnitude * f32::from_bits((2 * 127 + 3 - exponent) << 23) + 8_388_608.0;
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    ((exponent - 121) as u8 * 8 + eighths.to_bits() as u8) | sign
}

/// Converts f64 to binary16, rounded once.
pub(crate) fn f64_to_f16(x: f64) -> u16 {
    if x.is_nan() { 0x7fff } else { half::f16::from_f64(x).to_bits() }
}

/// Converts f64 to bfloat16, rounded once.
pub(crate) fn f64_to_bf16(x: f64) -> u16 {
    if x.is_nan() { 0x7fff } else { half::bf16::from_f64(x).to_bits() }
}

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    let greater = if a > b || (a == b && a.is_sign_positive()) { a } else { b };
    let numbers = if a.is_nan() { b } else { greater };
    canonical(if b.is_nan() { a } else { numbers })
}

#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    let less = if a < b || (a == b && a.is_sign_negative()) { a } else { b };
    let numbers = if a.is_nan() { b } else { less };
    canonical(if b.is_nan() { a } else { numbers })
}

#[inline(always)]
fn max_nan(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { NAN } else { max(a, b) }
}

#[inline(always)]
fn min_nan(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { NAN } else { min(a, b) }
}

/// The coefficients ln(2)^n / n! of 2^t, for t from -1/2 to 1/2.
const EXP2: [f64; 13] = {
    let mut all = [1.0; 13];
    let mut n = 1;
    while n < all.len() {
        all[n] = all[n - 1] * core::f64::consts::LN_2 / n as f64;
        n += 1;
    }
    all
};

/// Computes 2^x in f64, with an error well below half a unit of f32, and with the same result on every
/// machine.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = f64::from(x);
    let clamped = if x > 1100.0 { 1100.0 } else { x };
    let clamped = if clamped > -1000.0 { clamped } else { -1000.0 };
    let magic = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer held in the low bits
    let shifted = clamped + magic;
    let whole = (shifted.to_bits() as u32) as i32;
    let t = clamped - (shifted - magic);
    let sum = EXP2.iter().rev().fold(0.0, |sum, coefficient| sum * t + coefficient);
    let power = f64::from_bits((1023 + i64::from(whole.clamp(-1000, 1000))) as u64 * (1 << 52));
    let value = (sum * power) as f32;
    if x.is_nan() { NAN } else { value }
}

/// The two halves of a packed register.
#[inline(always)]
pub(crate) fn halves(x: u32) -> [u16; 2] {
    [x as u16, (x >> 16) as u16]
}

/// Packs two halves into a register.
#[inline(always)]
pub(crate) fn pack([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

macro_rules! f32s {
    ($ftz:expr, $sat:expr, |$($x:ident),*| $e:expr) => {
        match ($ftz, $sat) {
            (false, false) => Some(alu!(f32 => |$($x: f32),*| canonical($e))),
            (true, false) => Some(alu!(f32 => |$($x: f32),*| {
                $( let $x = flush($x); )* flush(canonical($e))
            })),
            (false, true) => Some(alu!(f32 => |$($x: f32),*| saturate($e))),
            (true, true) => Some(alu!(f32 => |$($x: f32),*| {
                $( let $x = flush($x); )* flush(saturate($e))
            })),
        }
    };
}

/// An operation on one or two 16-bit floats. The operation computes in f64, which is exact for sums and
/// products of such floats, and rounds once.
macro_rules! half_floats {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        match $ty {
            "f16" => Some(alu!(u16 => |$($x: u16),*| {
                $( let $x = f64::from(from_f16($x)); )* f64_to_f16($e)
            })),
            "bf16" => Some(alu!(u16 => |$($x: u16),*| {
                $( let $x = f64::from(from_bf16($x)); )* f64_to_bf16($e)
            })),
            "f16x2" => Some(alu!(u32 => |$($x: u32),*| {
                $( let $x = halves($x); )*
                pack([0, 1].map(|i| { $( let $x = f64::from(from_f16($x[i])); )* f64_to_f16($e) }))
            })),
            "bf16x2" => Some(alu!(u32 => |$($x: u32),*| {
                $( let $x = halves($x); )*
                pack([0, 1].map(|i| { $( let $x = f64::from(from_bf16($x[i])); )* f64_to_bf16($e) }))
            })),
            _ => None,
        }
    };
}

/// The arithmetic instruction with base name `op`; `mods` is the rest of the opcode.
pub(super) fn find(op: &str, mods: &[&str]) -> Option<Alu> {
    let (&ty, flags) = mods.split_last()?;
    let (mut ftz, mut sat, mut approx, mut nan) = (false, false, false, false);
    for &flag in flags {
        match flag {
            "ftz" => ftz = true,
            "sat" => sat = true,
            "NaN" => nan = true,
            "rn" => {}
            "approx" | "full" => approx = true,
            _ => return None,
        }
    }
    match (op, ty) {
        ("add", "f32") => f32s!(ftz, sat, |a, b| a + b),
        ("sub", "f32") => f32s!(ftz, sat, |a, b| a - b),
        ("mul", "f32") => f32s!(ftz, sat, |a, b| a * b),
        ("fma" | "mad", "f32") if !ftz && !sat => {
            Some(Alu { run: fma_rows, ..alu!(f32 => |a: f32, b: f32, c: f32| a.mul_add(b, c)) })
        }
        ("fma" | "mad", "f32") => f32s!(ftz, sat, |a, b, c| a.mul_add(b, c)),
        ("div", "f32") => f32s!(ftz, sat, |a, b| a / b),
        ("rcp", "f32") => f32s!(ftz, sat, |a| 1.0 / a),
        ("sqrt", "f32") => f32s!(ftz, sat, |a| a.sqrt()),
        ("rsqrt", "f32") => f32s!(ftz, sat, |a| (1.0 / f64::from(a).sqrt()) as f32),
        ("ex2", "f32") if approx && ftz => {
            Some(Alu { run: ex2_rows, ..alu!(f32 => |a: f32| flush(canonical(exp2(flush(a))))) })
        }
        ("ex2", "f32") if approx => f32s!(false, false, |a| exp2(a)),
        ("lg2", "f32") if approx => f32s!(ftz, sat, |a| f64::from(a).log2() as f32),
        ("tanh", "f32") if approx => f32s!(ftz, sat, |a| f64::from(a).tanh() as f32),
        ("sin", "f32") if approx => f32s!(ftz, sat, |a| f64::from(a).sin() as f32),
        ("cos", "f32") if approx => f32s!(ftz, sat, |a| f64::from(a).cos() as f32),
        ("neg", "f32") if ftz => Some(alu!(f32 => |a: f32| flush(-a))),
        ("neg", "f32") => Some(alu!(f32 => |a: f32| -a)),
        ("abs", "f32") if ftz => Some(alu!(f32 => |a: f32| flush(a.abs()))),
        ("abs", "f32") => Some(alu!(f32 => |a: f32| a.abs())),
        ("max", "f32") if nan => f32s!(ftz, sat, |a, b| max_nan(a, b)),
        ("min", "f32") if nan => f32s!(ftz, sat, |a, b| min_nan(a, b)),
        ("max", "f32") => f32s!(ftz, sat, |a, b| max(a, b)),
        ("min", "f32") => f32s!(ftz, sat, |a, b| min(a, b)),
        ("copysign", "f32") => Some(alu!(f32 => |a: f32, b: f32| b.copysign(a))),
        ("add", "f64") => Some(alu!(f64 => |a: f64, b: f64| a + b)),
        ("sub", "f64") => Some(alu!(f64 => |a: f64, b: f64| a - b)),
        ("mul", "f64") => Some(alu!(f64 => |a: f64, b: f64| a * b)),
        ("fma" | "mad", "f64") => Some(alu!(f64 => |a: f64, b: f64, c: f64| a.mul_add(b, c))),
        ("div", "f64") => Some(alu!(f64 => |a: f64, b: f64| a / b)),
        ("rcp", "f64") => Some(alu!(f64 => |a: f64| 1.0 / a)),
        ("sqrt", "f64") => Some(alu!(f64 => |a: f64| a.sqrt())),
        ("neg", "f64") => Some(alu!(f64 => |a: f64| -a)),
        ("abs", "f64") => Some(alu!(f64 => |a: f64| a.abs())),
        ("max", "f64") => Some(alu!(f64 => |a: f64, b: f64| a.max(b))),
        ("min", "f64") => Some(alu!(f64 => |a: f64, b: f64| a.min(b))),
        ("neg", "f16" | "bf16") => Some(alu!(u16 => |a: u16| a ^ 0x8000)),
        ("neg", "f16x2" | "bf16x2") => Some(alu!(u32 => |a: u32| a ^ 0x8000_8000)),
        ("abs", "f16" | "bf16") => Some(alu!(u16 => |a: u16| a & 0x7fff)),
        ("abs", "f16x2" | "bf16x2") => Some(alu!(u32 => |a: u32| a & 0x7fff_7fff)),
        ("add", ty) if !ftz && !sat => half_floats!(ty, |a, b| a + b),
        ("sub", ty) if !ftz && !sat => half_floats!(ty, |a, b| a - b),
        ("mul", ty) if !ftz && !sat => half_floats!(ty, |a, b| a * b),
        ("fma", ty) if !ftz && !sat => half_floats!(ty, |a, b, c| a.mul_add(b, c)),
        ("max", ty) if !ftz && nan => half_floats!(ty, |a, b| f64::from(max_nan(a as f32, b as f32))),
        ("min", ty) if !ftz && nan => half_floats!(ty, |a, b| f64::from(min_nan(a as f32, b as f32))),
        ("max", ty) if !ftz => half_floats!(ty, |a, b| f64::from(max(a as f32, b as f32))),
        ("min", ty) if !ftz => half_floats!(ty, |a, b| f64::from(min(a as f32, b as f32))),
        ("ex2", ty) if ftz => half_floats!(ty, |a| flushed(flushed(a).exp2())),
        ("ex2", ty) if approx => half_floats!(ty, |a| a.exp2()),
        ("tanh", ty) if approx => half_floats!(ty, |a| a.tanh()),
        _ => None,
    }
}

fn ex2_rows(regs: &mut Regs, args: &Args, mask: u32) {
    let row = <f32 as Lane>::row(regs, args[1], mask);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function needs.
        let row = unsafe { ex2_wide(&row) };
        return regs.set32(args[0], mask, &row);
    }
    regs.set32(args[0], mask, &ex2_row(&row));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn ex2_wide(row: &[u32; LANES]) -> [u32; LANES] {
    ex2_row(row)
}

#[inline(always)]
fn ex2_row(row: &[u32; LANES]) -> [u32; LANES] {
    row.map(|x| flush(canonical(exp2(flush(f32::from_bits(x))))).to_bits())
}

fn fma_rows(regs: &mut Regs, args: &Args, mask: u32) {
    let rows = [1, 2, 3].map(|at| <f32 as Lane>::row(regs, args[at], mask));
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has both features that the function needs.
        let row = unsafe { fma_wide(&rows) };
        return regs.set32(args[0], mask, &row);
    }
    regs.set32(args[0], mask, &fma_row(&rows));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_wide(rows: &[[u32; LANES]; 3]) -> [u32; LANES] {
    fma_row(rows)
}

#[inline(always)]
fn fma_row([a, b, c]: &[[u32; LANES]; 3]) -> [u32; LANES] {
    let mut row = [0; LANES];
    for lane in 0..LANES {
        row[lane] =
            canonical(f32::from_bits(a[lane]).mul_add(f32::from_bits(b[lane]), f32::from_bits(c[lane])))
                .to_bits();
    }
    row
}
