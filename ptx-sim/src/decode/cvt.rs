//! Conversions.

use super::float::{f64_to_bf16, f64_to_f16, flush, from_bf16, from_f16, pack, to_bf16, to_f16};
use crate::regs::{Alu, alu};

/// Rounds to an integer as `mode` says, in f64.
#[inline(always)]
fn round(x: f64, mode: u8) -> f64 {
    match mode {
        b'n' => x.round_ties_even(),
        b'z' => x.trunc(),
        b'm' => x.floor(),
        _ => x.ceil(),
    }
}

macro_rules! to_int {
    ($d:ty, $s:ty, $mode:expr, |$x:ident| $from:expr) => {
        // `as` saturates and sends NaN to zero, as PTX does.
        match $mode {
            "rni" => Some(alu!($d => |$x: $s| round($from, b'n') as $d)),
            "rzi" => Some(alu!($d => |$x: $s| round($from, b'z') as $d)),
            "rmi" => Some(alu!($d => |$x: $s| round($from, b'm') as $d)),
            "rpi" => Some(alu!($d => |$x: $s| round($from, b'p') as $d)),
            _ => None,
        }
    };
}

macro_rules! float_to_int {
    ($d:expr, $s:ty, $mode:expr, |$x:ident| $from:expr) => {
        match $d {
            "u8" => to_int!(u8, $s, $mode, |$x| $from),
            "u16" => to_int!(u16, $s, $mode, |$x| $from),
            "s16" => to_int!(i16, $s, $mode, |$x| $from),
            "u32" => to_int!(u32, $s, $mode, |$x| $from),
            "s32" => to_int!(i32, $s, $mode, |$x| $from),
            "u64" => to_int!(u64, $s, $mode, |$x| $from),
            "s64" => to_int!(i64, $s, $mode, |$x| $from),
            _ => None,
        }
    };
}

macro_rules! int_to_int {
    ($s:ty, $name:expr) => {
        match $name {
            "u8" => Some(alu!(u8 => |x: $s| x as u8)),
            "s8" => Some(alu!(i32 => |x: $s| i32::from(x as i8))),
            "u16" => Some(alu!(u16 => |x: $s| x as u16)),
            "s16" => Some(alu!(i16 => |x: $s| x as i16)),
            "u32" => Some(alu!(u32 => |x: $s| x as u32)),
            "s32" => Some(alu!(i32 => |x: $s| x as i32)),
            "u64" => Some(alu!(u64 => |x: $s| x as u64)),
            "s64" => Some(alu!(i64 => |x: $s| x as i64)),
            _ => None,
        }
    };
}

macro_rules! int_to_float {
    ($s:ty, $name:expr) => {
        match $name {
            "f16" => Some(alu!(u16 => |x: $s| f64_to_f16(x as f64))),
            "bf16" => Some(alu!(u16 => |x: $s| f64_to_bf16(x as f64))),
            "f32" => Some(alu!(f32 => |x: $s| x as f32)),
            "f64" => Some(alu!(f64 => |x: $s| x as f64)),
            _ => None,
        }
    };
}

macro_rules! from_int {
    ($t:ty, $d:expr, $mode:expr) => {
        match $mode {
            "" => int_to_int!($t, $d),
            "rn" => int_to_float!($t, $d),
            _ => None,
        }
    };
}

/// `cvt` with the modifiers `mods`; the last two are the destination's and the source's type.
pub(super) fn find(mods: &[&str]) -> Option<Alu> {
    let [flags @ .., d, s] = mods else { return None };
    let (mut mode, mut ftz, mut sat, mut relu) = ("", false, false, false);
    for &flag in flags {
        match flag {
            "ftz" => ftz = true,
            "sat" => sat = true,
            "relu" => relu = true,
            flag => mode = flag,
        }
    }
    if relu {
        return match (*d, *s, mode) {
            ("f16x2", "f32", "rn") => {
                Some(alu!(u32 => |a: f32, b: f32| pack([to_f16(relu_of(b)), to_f16(relu_of(a))])))
            }
            ("bf16x2", "f32", "rn") => {
                Some(alu!(u32 => |a: f32, b: f32| pack([to_bf16(relu_of(b)), to_bf16(relu_of(a))])))
            }
            _ => None,
        };
    }
    if sat && *s != "f32" {
        return saturating(d, s);
    }
    match (*d, *s, mode) {
        // The first source goes to the high half.
        ("f16x2", "f32", "rn") => Some(alu!(u32 => |a: f32, b: f32| pack([to_f16(b), to_f16(a)]))),
        ("bf16x2", "f32", "rn") => Some(alu!(u32 => |a: f32, b: f32| pack([to_bf16(b), to_bf16(a)]))),
        ("f16x2", "f32", "rz") => Some(alu!(u32 => |a: f32, b: f32| pack([toward_zero_f16(b), toward_zero_f16(a)]))),
        ("bf16x2", "f32", "rz") => Some(alu!(u32 => |a: f32, b: f32| pack([toward_zero_bf16(b), toward_zero_bf16(a)]))),
        ("f16", "f32", "rn") if sat => Some(alu!(u16 => |a: f32| to_f16(if a > 0.0 { a.min(1.0) } else { 0.0 }))),
        ("f16", "f32", "rn") => Some(alu!(u16 => |a: f32| to_f16(a))),
        ("bf16", "f32", "rn") => Some(alu!(u16 => |a: f32| to_bf16(a))),
        ("f16", "f32", "rz") => Some(alu!(u16 => |a: f32| toward_zero_f16(a))),
        ("bf16", "f32", "rz") => Some(alu!(u16 => |a: f32| toward_zero_bf16(a))),
        ("f32", "f16", _) => Some(alu!(f32 => |a: u16| quiet(from_f16(a)))),
        ("f32", "bf16", _) => Some(alu!(f32 => |a: u16| quiet(from_bf16(a)))),
        ("f64", "f16", _) => Some(alu!(f64 => |a: u16| f64::from(from_f16(a)))),
        ("f16", "f64", "rn") => Some(alu!(u16 => |a: f64| f64_to_f16(a))),
        ("f64", "f32", _) => Some(alu!(f64 => |a: f32| f64::from(a))),
        ("f32", "f64", "rn") => Some(alu!(f32 => |a: f64| quiet(a as f32))),
        ("f32", "f32", "") if sat => Some(alu!(f32 => |a: f32| if a > 0.0 { a.min(1.0) } else { 0.0 })),
        ("f32", "f32", "") => Some(alu!(f32 => |a: f32| a)),
        ("f32", "f32", "rni") => Some(alu!(f32 => |a: f32| quiet(a.round_ties_even()))),
        ("f32", "f32", "rzi") => Some(alu!(f32 => |a: f32| quiet(a.trunc()))),
        ("f32", "f32", "rmi") => Some(alu!(f32 => |a: f32| quiet(a.floor()))),
        ("f32", "f32", "rpi") => Some(alu!(f32 => |a: f32| quiet(a.ceil()))),
        ("tf32", "f32", "rna") => Some(alu!(u32 => |a: u32| a.wrapping_add(0x1000) & !0x1fff)),
        (d, "f32", mode) if ftz => float_to_int!(d, f32, mode, |x| f64::from(flush(x))),
        (d, "f32", mode) => float_to_int!(d, f32, mode, |x| f64::from(x)),
        (d, "f64", mode) => float_to_int!(d, f64, mode, |x| x),
        (d, "f16", mode) => float_to_int!(d, u16, mode, |x| f64::from(from_f16(x))),
        (d, "bf16", mode) => float_to_int!(d, u16, mode, |x| f64::from(from_bf16(x))),
        (d, "u8" | "b8", mode) => from_int!(u8, d, mode),
        (d, "s8", "") => match d {
            "s32" | "u32" => Some(alu!(i32 => |x: u8| i32::from(x as i8))),
            "s16" | "u16" => Some(alu!(i16 => |x: u8| i16::from(x as i8))),
            "s64" | "u64" => Some(alu!(i64 => |x: u8| i64::from(x as i8))),
            _ => None,
        },
        ("f32", "s8", "rn") => Some(alu!(f32 => |x: u8| f32::from(x as i8))),
        (d, "u16" | "b16", mode) => from_int!(u16, d, mode),
        (d, "s16", mode) => from_int!(i16, d, mode),
        (d, "u32" | "b32", mode) => from_int!(u32, d, mode),
        (d, "s32", mode) => from_int!(i32, d, mode),
        (d, "u64" | "b64", mode) => from_int!(u64, d, mode),
        (d, "s64", mode) => from_int!(i64, d, mode),
        _ => None,
    }
}

#[inline(always)]
fn quiet(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x }
}

fn relu_of(x: f32) -> f32 {
    if x > 0.0 || x.is_nan() { x } else { 0.0 }
}

fn toward_zero_f16(x: f32) -> u16 {
    let near = to_f16(x);
    // One step back when rounding went outward (overflow to infinity included).
    if near & 0x7fff <= 0x7c00 && from_f16(near).abs() > x.abs() { near - 1 } else { near }
}

fn toward_zero_bf16(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { (x.to_bits() >> 16) as u16 }
}

/// Integer conversions that clamp to the destination's range.
fn saturating(d: &str, s: &str) -> Option<Alu> {
    Some(match (d, s) {
        ("u8", "s32") => alu!(u8 => |x: i32| x.clamp(0, 255) as u8),
        ("s8", "s32") => alu!(i32 => |x: i32| x.clamp(-128, 127)),
        ("u8", "u32") => alu!(u8 => |x: u32| x.min(255) as u8),
        ("u16", "s32") => alu!(u16 => |x: i32| x.clamp(0, 65535) as u16),
        ("s16", "s32") => alu!(i16 => |x: i32| x.clamp(-32768, 32767) as i16),
        ("u32", "s32") => alu!(u32 => |x: i32| x.max(0) as u32),
        ("s32", "u32") => alu!(i32 => |x: u32| x.min(i32::MAX as u32) as i32),
        ("u32", "s64") => alu!(u32 => |x: i64| x.clamp(0, i64::from(u32::MAX)) as u32),
        ("s32", "s64") => alu!(i32 => |x: i64| x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32),
        ("u32", "u64") => alu!(u32 => |x: u64| x.min(u64::from(u32::MAX)) as u32),
        _ => return None,
    })
}
