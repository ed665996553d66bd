//! Decodes conversions.

use super::{
    Builder, Decoded,
    float::{f64_to_bf16, f64_to_f16, flush, from_bf16, from_e4m3, from_f16, pack, to_bf16, to_e4m3, to_f16},
};
use crate::{
    ast::{Operand, RegClass},
    op::Op,
    regs::{Alu, Kind, alu},
};

/// Rounds `x` to an integer by the rounding mode `mode`, in f64.
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
        // Rust's `as` saturates and converts NaN to zero, as PTX does.
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
            "s8" => to_int!(i8, $s, $mode, |$x| $from),
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
            "s8" => Some(alu!(i8 => |x: $s| x as i8)),
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

/// The conversion with the modifiers `mods`, the last two of which are the destination's type and the
/// source's type.
pub(super) fn find(mods: &[&str]) -> Option<Alu> {
    let [flags @ .., d, s] = mods else { return None };
    let (mut mode, mut ftz, mut sat, mut relu) = ("", false, false, false);
    for &flag in flags {
        match flag {
            "ftz" => ftz = true,
            "sat" => sat = true,
            "relu" => relu = true,
            // All conversions to eight bits have this word, and no other conversions have it.
            "satfinite" if *d == "e4m3x2" => {}
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
    let is_float = |ty: &str| ty.contains('f');
    match (is_float(d), is_float(s)) {
        (false, false) if sat => return saturating(d, s),
        // Every conversion from a float to an integer saturates.
        (true, _) if sat && *s != "f32" => return None,
        _ => {}
    }
    match (*d, *s, mode) {
        // The first source goes to the high half.
        ("f16x2", "f32", "rn") => Some(alu!(u32 => |a: f32, b: f32| pack([to_f16(b), to_f16(a)]))),
        ("bf16x2", "f32", "rn") => Some(alu!(u32 => |a: f32, b: f32| pack([to_bf16(b), to_bf16(a)]))),
        ("e4m3x2", "f32", "rn") if flags.contains(&"satfinite") => {
            Some(alu!(u16 => |a: f32, b: f32| u16::from_le_bytes([to_e4m3(b), to_e4m3(a)])))
        }
        ("f16x2", "e4m3x2", "rn") => {
            Some(alu!(u32 => |a: u16| pack(a.to_le_bytes().map(|byte| to_f16(from_e4m3(byte))))))
        }
        ("f16x2", "f32", "rz") => {
            Some(alu!(u32 => |a: f32, b: f32| pack([toward_zero_f16(b), toward_zero_f16(a)])))
        }
        ("bf16x2", "f32", "rz") => {
            Some(alu!(u32 => |a: f32, b: f32| pack([toward_zero_bf16(b), toward_zero_bf16(a)])))
        }
        ("f16", "f32", "rn") if sat => {
            Some(alu!(u16 => |a: f32| to_f16(if a > 0.0 { a.min(1.0) } else { 0.0 })))
        }
        ("f16", "f32", "rn") => Some(alu!(u16 => |a: f32| to_f16(a))),
        ("bf16", "f32", "rn") => Some(alu!(u16 => |a: f32| to_bf16(a))),
        ("f16", "f32", "rz") => Some(alu!(u16 => |a: f32| toward_zero_f16(a))),
        ("bf16", "f32", "rz") => Some(alu!(u16 => |a: f32| toward_zero_bf16(a))),
        ("f32", "f16", _) => Some(alu!(f32 => |a: u16| quiet(from_f16(a)))),
        ("f32", "bf16", _) => Some(alu!(f32 => |a: u16| quiet(from_bf16(a)))),
        ("f64", "f16", _) => Some(alu!(f64 => |a: u16| f64::from(from_f16(a)))),
        ("f16", "f64", "rn") => Some(alu!(u16 => |a: f64| f64_to_f16(a))),
        ("f64", "f32", _) if ftz => Some(alu!(f64 => |a: f32| f64::from(flush(a)))),
        ("f64", "f32", _) => Some(alu!(f64 => |a: f32| f64::from(a))),
        ("f32", "f64", "rn") if ftz => Some(alu!(f32 => |a: f64| flush(quiet(a as f32)))),
        ("f32", "f64", "rn") => Some(alu!(f32 => |a: f64| quiet(a as f32))),
        ("f32", "f32", "") if sat && ftz => {
            Some(alu!(f32 => |a: f32| if a > 0.0 { flush(a).min(1.0) } else { 0.0 }))
        }
        ("f32", "f32", "") if sat => Some(alu!(f32 => |a: f32| if a > 0.0 { a.min(1.0) } else { 0.0 })),
        ("f32", "f32", "") if ftz => Some(alu!(f32 => |a: f32| flush(a))),
        ("f32", "f32", "rni") if ftz => Some(alu!(f32 => |a: f32| quiet(flush(a).round_ties_even()))),
        ("f32", "f32", "rzi") if ftz => Some(alu!(f32 => |a: f32| quiet(flush(a).trunc()))),
        ("f32", "f32", "rmi") if ftz => Some(alu!(f32 => |a: f32| quiet(flush(a).floor()))),
        ("f32", "f32", "rpi") if ftz => Some(alu!(f32 => |a: f32| quiet(flush(a).ceil()))),
        ("f32", "f32", "") => Some(alu!(f32 => |a: f32| a)),
        ("f32", "f32", "rni") => Some(alu!(f32 => |a: f32| quiet(a.round_ties_even()))),
        ("f32", "f32", "rzi") => Some(alu!(f32 => |a: f32| quiet(a.trunc()))),
        ("f32", "f32", "rmi") => Some(alu!(f32 => |a: f32| quiet(a.floor()))),
        ("f32", "f32", "rpi") => Some(alu!(f32 => |a: f32| quiet(a.ceil()))),
        ("f64", "f64", "") => Some(alu!(f64 => |a: f64| a)),
        ("f64", "f64", "rni") => Some(alu!(f64 => |a: f64| round(a, b'n'))),
        ("f64", "f64", "rzi") => Some(alu!(f64 => |a: f64| round(a, b'z'))),
        ("f64", "f64", "rmi") => Some(alu!(f64 => |a: f64| round(a, b'm'))),
        ("f64", "f64", "rpi") => Some(alu!(f64 => |a: f64| round(a, b'p'))),
        ("f16", "f16", "rni") => Some(alu!(u16 => |a: u16| f64_to_f16(round(f64::from(from_f16(a)), b'n')))),
        ("f16", "f16", "rzi") => Some(alu!(u16 => |a: u16| f64_to_f16(round(f64::from(from_f16(a)), b'z')))),
        ("f16", "f16", "rmi") => Some(alu!(u16 => |a: u16| f64_to_f16(round(f64::from(from_f16(a)), b'm')))),
        ("f16", "f16", "rpi") => Some(alu!(u16 => |a: u16| f64_to_f16(round(f64::from(from_f16(a)), b'p')))),
        ("tf32", "f32", "rna") => Some(alu!(u32 => |a: u32| a.wrapping_add(0x1000) & !0x1fff)),
        (d, "f32", mode) if ftz => float_to_int!(d, f32, mode, |x| f64::from(flush(x))),
        (d, "f32", mode) => float_to_int!(d, f32, mode, |x| f64::from(x)),
        (d, "f64", mode) => float_to_int!(d, f64, mode, |x| x),
        (d, "f16", mode) => float_to_int!(d, u16, mode, |x| f64::from(from_f16(x))),
        (d, "bf16", mode) => float_to_int!(d, u16, mode, |x| f64::from(from_bf16(x))),
        (d, "u8" | "b8", mode) => from_int!(u8, d, mode),
        (d, "s8", mode) => from_int!(i8, d, mode),
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
    // If the value was rounded away from zero (even to infinity), this line goes back by one ulp.
    if near & 0x7fff <= 0x7c00 && from_f16(near).abs() > x.abs() { near - 1 } else { near }
}

fn toward_zero_bf16(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { (x.to_bits() >> 16) as u16 }
}

/// The integer conversion that clamps to the destination's range.
fn saturating(d: &str, s: &str) -> Option<Alu> {
    macro_rules! clamp {
        ($s:ty, $($name:literal $d:ty),*) => {
            match d {
                $( $name => Some(alu!($d => |x: $s| {
                    i128::from(x).clamp(i128::from(<$d>::MIN), i128::from(<$d>::MAX)) as $d
                })), )*
                _ => None,
            }
        };
        ($s:ty) => {
            clamp!($s, "u8" u8, "s8" i8, "u16" u16, "s16" i16, "u32" u32, "s32" i32, "u64" u64, "s64" i64)
        };
    }
    match s {
        "u8" => clamp!(u8),
        "s8" => clamp!(i8),
        "u16" => clamp!(u16),
        "s16" => clamp!(i16),
        "u32" => clamp!(u32),
        "s32" => clamp!(i32),
        "u64" => clamp!(u64),
        "s64" => clamp!(i64),
        _ => None,
    }
}

impl Builder<'_> {
    /// Registers may be wider than the types. The conversion reads the low part of a source, and extends the
    /// result by its type.
    pub(super) fn cvt(&mut self, mods: &[&str], operands: &[Operand]) -> Decoded {
        let alu = find(mods).ok_or("the simulator does not execute this conversion")?;
        let [d, sources @ ..] = operands else { return Err("operands are missing".into()) };
        if sources.len() != alu.s.len() {
            return Err(format!("takes {} sources, has {}", alu.s.len(), sources.len()));
        }
        let mut args = [0; 5];
        for (at, (source, kind)) in sources.iter().zip(alu.s).enumerate() {
            args[at + 1] = match (self.wide(source), kind) {
                (true, Kind::B32) => {
                    let args = [self.scratch(*kind), self.source(source, Kind::B64)?, 0, 0, 0];
                    self.prelude.push(Op::Alu { run: alu!(u32 => |a: u64| a as u32).run, args });
                    args[0]
                }
                _ => self.source(source, *kind)?,
            };
        }
        if !(self.wide(d) && alu.d == Kind::B32) {
            args[0] = self.destination(d, alu.d)?;
            return Ok(vec![Op::Alu { run: alu.run, args }]);
        }
        args[0] = self.scratch(alu.d);
        let signed = mods.len() > 1 && mods[mods.len() - 2].starts_with('s');
        let widen =
            if signed { alu!(i64 => |a: i32| i64::from(a)) } else { alu!(u64 => |a: u32| u64::from(a)) };
        let wide = [self.destination(d, Kind::B64)?, args[0], 0, 0, 0];
        Ok(vec![Op::Alu { run: alu.run, args }, Op::Alu { run: widen.run, args: wide }])
    }

    fn wide(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Reg(id) if self.class(*id) == Some(RegClass::B64))
    }
}
