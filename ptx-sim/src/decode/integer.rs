//! Decodes integer, logic and bit instructions.

use crate::regs::{Alu, alu};

/// Makes a closure for each integer type that `$ty` may name.
macro_rules! int {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        match $ty {
            "u16" => int!(@ u16, |$($x),*| $e),
            "s16" => int!(@ i16, |$($x),*| $e),
            "u32" => int!(@ u32, |$($x),*| $e),
            "s32" => int!(@ i32, |$($x),*| $e),
            "u64" => int!(@ u64, |$($x),*| $e),
            "s64" => int!(@ i64, |$($x),*| $e),
            _ => None,
        }
    };
    (@ $t:ty, |$($x:ident),*| $e:expr) => { Some(alu!($t => |$($x: $t),*| $e)) };
}

/// Makes a closure for each untyped width.
macro_rules! bits {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        match $ty {
            "b16" => Some(alu!(u16 => |$($x: u16),*| $e)),
            "b32" => Some(alu!(u32 => |$($x: u32),*| $e)),
            "b64" => Some(alu!(u64 => |$($x: u64),*| $e)),
            "pred" => Some(alu!(bool => |$($x: bool),*| $e)),
            _ => None,
        }
    };
}

/// Makes a product of twice the width.
macro_rules! wide {
    ($ty:expr, |$a:ident, $b:ident $(, $c:ident)?| $e:expr) => {
        match $ty {
            "u16" => Some(alu!(u32 => |$a: u16, $b: u16 $(, $c: u32)?| {
                let ($a, $b) = (u32::from($a), u32::from($b)); $e
            })),
            "s16" => Some(alu!(i32 => |$a: i16, $b: i16 $(, $c: i32)?| {
                let ($a, $b) = (i32::from($a), i32::from($b)); $e
            })),
            "u32" => Some(alu!(u64 => |$a: u32, $b: u32 $(, $c: u64)?| {
                let ($a, $b) = (u64::from($a), u64::from($b)); $e
            })),
            "s32" => Some(alu!(i64 => |$a: i32, $b: i32 $(, $c: i64)?| {
                let ($a, $b) = (i64::from($a), i64::from($b)); $e
            })),
            _ => None,
        }
    };
}

/// Makes the upper half of a product.
macro_rules! high {
    ($ty:expr, |$h:ident $(, $c:ident)?| $e:expr) => {
        match $ty {
            "u16" => Some(alu!(u16 => |a: u16, b: u16 $(, $c: u16)?| {
                let $h = (u32::from(a) * u32::from(b) >> 16) as u16; $e
            })),
            "s16" => Some(alu!(i16 => |a: i16, b: i16 $(, $c: i16)?| {
                let $h = (i32::from(a) * i32::from(b) >> 16) as i16; $e
            })),
            "u32" => Some(alu!(u32 => |a: u32, b: u32 $(, $c: u32)?| {
                let $h = (u64::from(a) * u64::from(b) >> 32) as u32; $e
            })),
            "s32" => Some(alu!(i32 => |a: i32, b: i32 $(, $c: i32)?| {
                let $h = (i64::from(a) * i64::from(b) >> 32) as i32; $e
            })),
            "u64" => Some(alu!(u64 => |a: u64, b: u64 $(, $c: u64)?| {
                let $h = (u128::from(a) * u128::from(b) >> 64) as u64; $e
            })),
            "s64" => Some(alu!(i64 => |a: i64, b: i64 $(, $c: i64)?| {
                let $h = (i128::from(a) * i128::from(b) >> 64) as i64; $e
            })),
            _ => None,
        }
    };
}

/// The integer instruction with base name `op`, where `mods` is the rest of the opcode.
pub(super) fn find(op: &str, mods: &[&str]) -> Option<Alu> {
    match (op, mods) {
        ("add", ["sat", "s32"]) => Some(alu!(i32 => |a: i32, b: i32| a.saturating_add(b))),
        ("sub", ["sat", "s32"]) => Some(alu!(i32 => |a: i32, b: i32| a.saturating_sub(b))),
        ("add", [ty]) => int!(*ty, |a, b| a.wrapping_add(b)),
        ("sub", [ty]) => int!(*ty, |a, b| a.wrapping_sub(b)),
        ("mul", ["lo", ty]) => int!(*ty, |a, b| a.wrapping_mul(b)),
        ("mul", ["hi", ty]) => high!(*ty, |h| h),
        ("mul", ["wide", ty]) => wide!(*ty, |a, b| a * b),
        ("mul24", [half @ ("lo" | "hi"), "u32"]) => match *half {
            "lo" => Some(alu!(u32 => |a: u32, b: u32| product24(low24(a), low24(b), 0))),
            _ => Some(alu!(u32 => |a: u32, b: u32| product24(low24(a), low24(b), 16))),
        },
        ("mul24", [half @ ("lo" | "hi"), "s32"]) => match *half {
            "lo" => Some(alu!(u32 => |a: i32, b: i32| product24(signed24(a), signed24(b), 0))),
            _ => Some(alu!(u32 => |a: i32, b: i32| product24(signed24(a), signed24(b), 16))),
        },
        ("mad24", [half @ ("lo" | "hi"), "u32"]) => match *half {
            "lo" => Some(alu!(u32 => |a: u32, b: u32, c: u32| {
                product24(low24(a), low24(b), 0).wrapping_add(c)
            })),
            _ => Some(alu!(u32 => |a: u32, b: u32, c: u32| {
                product24(low24(a), low24(b), 16).wrapping_add(c)
            })),
        },
        ("mad24", [half @ ("lo" | "hi"), "s32"]) => match *half {
            "lo" => Some(alu!(u32 => |a: i32, b: i32, c: u32| {
                product24(signed24(a), signed24(b), 0).wrapping_add(c)
            })),
            _ => Some(alu!(u32 => |a: i32, b: i32, c: u32| {
                product24(signed24(a), signed24(b), 16).wrapping_add(c)
            })),
        },
        ("mad", ["lo", ty]) => int!(*ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad", ["hi", ty]) => high!(*ty, |h, c| h.wrapping_add(c)),
        ("mad", ["wide", ty]) => wide!(*ty, |a, b, c| (a * b).wrapping_add(c)),
        // PTX does not specify a division by zero. The hardware's instruction sequence gives all ones.
        ("div", [ty]) => int!(*ty, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        ("rem", [ty]) => int!(*ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        ("min", [ty]) => int!(*ty, |a, b| a.min(b)),
        ("max", [ty]) => int!(*ty, |a, b| a.max(b)),
        ("min", ["relu", "s32"]) => Some(alu!(i32 => |a: i32, b: i32| a.min(b).max(0))),
        ("max", ["relu", "s32"]) => Some(alu!(i32 => |a: i32, b: i32| a.max(b).max(0))),
        ("neg", ["s16"]) => Some(alu!(i16 => |a: i16| a.wrapping_neg())),
        ("neg", ["s32"]) => Some(alu!(i32 => |a: i32| a.wrapping_neg())),
        ("neg", ["s64"]) => Some(alu!(i64 => |a: i64| a.wrapping_neg())),
        ("abs", ["s16"]) => Some(alu!(i16 => |a: i16| a.wrapping_abs())),
        ("abs", ["s32"]) => Some(alu!(i32 => |a: i32| a.wrapping_abs())),
        ("abs", ["s64"]) => Some(alu!(i64 => |a: i64| a.wrapping_abs())),
        ("sad", ["u32"]) => Some(alu!(u32 => |a: u32, b: u32, c: u32| c.wrapping_add(a.abs_diff(b)))),
        ("sad", ["s32"]) => Some(alu!(u32 => |a: i32, b: i32, c: u32| c.wrapping_add(a.abs_diff(b)))),
        ("and", [ty]) => bits!(*ty, |a, b| a & b),
        ("or", [ty]) => bits!(*ty, |a, b| a | b),
        ("xor", [ty]) => bits!(*ty, |a, b| a ^ b),
        ("not", [ty]) => bits!(*ty, |a| !a),
        ("cnot", ["b32"]) => Some(alu!(u32 => |a: u32| u32::from(a == 0))),
        ("shl", ["b16"]) => Some(alu!(u16 => |a: u16, n: u32| a.checked_shl(n).unwrap_or(0))),
        ("shl", ["b32"]) => Some(alu!(u32 => |a: u32, n: u32| if n > 31 { 0 } else { a << n })),
        ("shl", ["b64"]) => Some(alu!(u64 => |a: u64, n: u32| if n > 63 { 0 } else { a << n })),
        ("shr", ["b16" | "u16"]) => Some(alu!(u16 => |a: u16, n: u32| a.checked_shr(n).unwrap_or(0))),
        ("shr", ["b32" | "u32"]) => Some(alu!(u32 => |a: u32, n: u32| if n > 31 { 0 } else { a >> n })),
        ("shr", ["b64" | "u64"]) => Some(alu!(u64 => |a: u64, n: u32| if n > 63 { 0 } else { a >> n })),
        ("shr", ["s16"]) => Some(alu!(i16 => |a: i16, n: u32| a >> n.min(15))),
        ("shr", ["s32"]) => Some(alu!(i32 => |a: i32, n: u32| a >> n.min(31))),
        ("shr", ["s64"]) => Some(alu!(i64 => |a: i64, n: u32| a >> n.min(63))),
        ("shf", [side, mode, "b32"]) => funnel(side, mode),
        ("bfe", ["u32"]) => Some(alu!(u32 => |a: u32, at: u32, n: u32| bfe(u64::from(a), at, n) as u32)),
        ("bfe", ["u64"]) => Some(alu!(u64 => |a: u64, at: u32, n: u32| bfe(a, at, n))),
        ("bfe", ["s32"]) => {
            Some(alu!(i32 => |a: i32, at: u32, n: u32| bfe_signed(i64::from(a), at, n, 32) as i32))
        }
        ("bfe", ["s64"]) => Some(alu!(i64 => |a: i64, at: u32, n: u32| bfe_signed(a, at, n, 64))),
        ("bfi", ["b32"]) => Some(alu!(u32 => |a: u32, b: u32, at: u32, n: u32| {
            bfi(u64::from(a), u64::from(b), at, n, 32) as u32
        })),
        ("bfi", ["b64"]) => Some(alu!(u64 => |a: u64, b: u64, at: u32, n: u32| bfi(a, b, at, n, 64))),
        ("bmsk", ["clamp", "b32"]) => Some(alu!(u32 => |at: u32, n: u32| mask(at.min(32), n.min(32)))),
        ("bmsk", ["wrap", "b32"]) => Some(alu!(u32 => |at: u32, n: u32| mask(at & 31, n & 31))),
        ("brev", ["b32"]) => Some(alu!(u32 => |a: u32| a.reverse_bits())),
        ("brev", ["b64"]) => Some(alu!(u64 => |a: u64| a.reverse_bits())),
        ("popc", ["b32"]) => Some(alu!(u32 => |a: u32| a.count_ones())),
        ("popc", ["b64"]) => Some(alu!(u32 => |a: u64| a.count_ones())),
        ("clz", ["b32"]) => Some(alu!(u32 => |a: u32| a.leading_zeros())),
        ("clz", ["b64"]) => Some(alu!(u32 => |a: u64| a.leading_zeros())),
        ("bfind", ["u32"]) => Some(alu!(u32 => |a: u32| 31u32.wrapping_sub(a.leading_zeros()))),
        ("bfind", ["u64"]) => Some(alu!(u32 => |a: u64| 63u32.wrapping_sub(a.leading_zeros()))),
        ("bfind", ["s32"]) => Some(alu!(u32 => |a: i32| 31u32.wrapping_sub((a ^ a >> 31).leading_zeros()))),
        ("prmt", ["b32"]) => Some(alu!(u32 => |a: u32, b: u32, c: u32| permute(a, b, c))),
        ("lop3", ["b32"]) => Some(alu!(u32 => |a: u32, b: u32, c: u32, lut: u32| lop3(a, b, c, lut))),
        ("dp4a", [x, y]) => dot4(x, y),
        _ => None,
    }
}

fn low24(a: u32) -> i64 {
    i64::from(a & 0xff_ffff)
}

fn signed24(a: i32) -> i64 {
    i64::from(a << 8 >> 8)
}

/// 32 bits, from bit `shift` on, of the 48 bits of a product.
fn product24(a: i64, b: i64, shift: u32) -> u32 {
    ((a * b) >> shift) as u32
}

fn funnel(side: &str, mode: &str) -> Option<Alu> {
    Some(match (side, mode) {
        ("l", "wrap") => {
            alu!(u32 => |a: u32, b: u32, n: u32| {
                ((u64::from(b) << 32 | u64::from(a)) << (n & 31) >> 32) as u32
            })
        }
        ("l", "clamp") => {
            alu!(u32 => |a: u32, b: u32, n: u32| {
                ((u64::from(b) << 32 | u64::from(a)) << n.min(32) >> 32) as u32
            })
        }
        ("r", "wrap") => {
            alu!(u32 => |a: u32, b: u32, n: u32| {
                ((u64::from(b) << 32 | u64::from(a)) >> (n & 31)) as u32
            })
        }
        ("r", "clamp") => {
            alu!(u32 => |a: u32, b: u32, n: u32| {
                ((u64::from(b) << 32 | u64::from(a)) >> n.min(32)) as u32
            })
        }
        _ => return None,
    })
}

fn dot4(x: &str, y: &str) -> Option<Alu> {
    fn dot(a: u32, b: u32, signed_a: bool, signed_b: bool) -> u32 {
        let part = |v: u32, i: usize, signed: bool| {
            let byte = v.to_le_bytes()[i];
            if signed { i32::from(byte as i8) } else { i32::from(byte) }
        };
        (0..4).fold(0u32, |sum, i| sum.wrapping_add((part(a, i, signed_a) * part(b, i, signed_b)) as u32))
    }
    Some(match (x, y) {
        ("u32", "u32") => alu!(u32 => |a: u32, b: u32, c: u32| c.wrapping_add(dot(a, b, false, false))),
        ("u32", "s32") => alu!(u32 => |a: u32, b: u32, c: u32| c.wrapping_add(dot(a, b, false, true))),
        ("s32", "u32") => alu!(u32 => |a: u32, b: u32, c: u32| c.wrapping_add(dot(a, b, true, false))),
        ("s32", "s32") => alu!(u32 => |a: u32, b: u32, c: u32| c.wrapping_add(dot(a, b, true, true))),
        _ => return None,
    })
}

/// A mask of `n` ones from bit `at` on, limited to 32 bits.
fn mask(at: u32, n: u32) -> u32 {
    (ones(n) << at) as u32
}

fn ones(n: u32) -> u64 {
    if n > 63 { u64::MAX } else { (1 << n) - 1 }
}

fn bfe(a: u64, at: u32, n: u32) -> u64 {
    let (at, n) = (at & 255, n & 255);
    if at > 63 { 0 } else { a >> at & ones(n) }
}

fn bfe_signed(a: i64, at: u32, n: u32, bits: u32) -> i64 {
    let (at, n) = (at & 255, n & 255);
    if n == 0 {
        return 0;
    }
    let top = (at.saturating_add(n) - 1).min(bits - 1);
    let sign = a >> top & 1;
    let field = if at >= bits { 0 } else { (a as u64 & ones(bits)) >> at };
    // Field bits beyond the value, and all bits above the field, are copies of the sign.
    let width = n.min(bits.saturating_sub(at));
    if sign != 0 { (field | !ones(width)) as i64 } else { (field & ones(width)) as i64 }
}

fn bfi(a: u64, b: u64, at: u32, n: u32, bits: u32) -> u64 {
    let (at, n) = (at & 255, n & 255);
    if at >= bits {
        return b;
    }
    let field = ones(n) << at & ones(bits);
    b & !field | a << at & field
}

fn permute(a: u32, b: u32, control: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let pick = |i: u32| {
        let select = control >> (4 * i) & 15;
        let byte = bytes[(select & 7) as usize];
        if select & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

fn lop3(a: u32, b: u32, c: u32, lut: u32) -> u32 {
    let mut out = 0;
    for index in 0..8 {
        if lut >> index & 1 != 0 {
            out |= (if index & 4 != 0 { a } else { !a })
                & (if index & 2 != 0 { b } else { !b })
                & (if index & 1 != 0 { c } else { !c });
        }
    }
    out
}
