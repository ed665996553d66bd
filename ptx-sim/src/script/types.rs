//! Element types, and conversion of numbers between text and memory.

use std::fmt;

/// A number, stored exactly.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    /// Whether the two numbers differ by at most `tolerance`.
    pub fn is_within(self, other: Number, tolerance: f64) -> bool {
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => a.abs_diff(b) as f64 <= tolerance,
            (Number::Float(a), Number::Float(b)) => {
                a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance
            }
            _ => false,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Integer(value) => value.fmt(f),
            Number::Float(value) => value.fmt(f),
        }
    }
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Unsigned(usize),
    Signed(usize),
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    /// The names that [`Type::parse`] accepts.
    pub const NAMES: &str = "u8 to u64, s8 to s64, f16, bf16, f32, f64";

    pub fn parse(name: &str) -> Option<Type> {
        let bits = |text: &str| {
            matches!(text, "8" | "16" | "32" | "64").then(|| text.parse::<usize>().ok()).flatten()
        };
        Some(match name {
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => match name.split_at_checked(1)? {
                ("u", rest) => Type::Unsigned(bits(rest)? / 8),
                ("s", rest) => Type::Signed(bits(rest)? / 8),
                _ => return None,
            },
        })
    }

    pub fn bytes(self) -> usize {
        match self {
            Type::Unsigned(bytes) | Type::Signed(bytes) => bytes,
            Type::F16 | Type::Bf16 => 2,
            Type::F32 => 4,
            Type::F64 => 8,
        }
    }

    /// The little-endian bytes of the number `text`, or `None` if `text` is not a number, or out of range.
    /// Hexadecimal digits give the bits of the number, for signed types too.
    pub fn encode(self, text: &str) -> Option<Vec<u8>> {
        let integer = |bytes: usize, signed: bool| {
            let bits = 8 * bytes as u32;
            let (value, range) = match text.strip_prefix("0x") {
                Some(hex) => (i128::from(u64::from_str_radix(hex, 16).ok()?), 0..1 << bits),
                None if signed => (text.parse().ok()?, -(1 << (bits - 1))..1 << (bits - 1)),
                None => (text.parse().ok()?, 0..1 << bits),
            };
            range.contains(&value).then(|| value.to_le_bytes()[..bytes].to_vec())
        };
        let number: Option<f64> = text.parse().ok();
        // A finite number that rounding makes infinite is out of range.
        let fits = |rounded: f64| number.is_some_and(|number| rounded.is_finite() || !number.is_finite());
        match self {
            Type::Unsigned(bytes) => integer(bytes, false),
            Type::Signed(bytes) => integer(bytes, true),
            Type::F16 => Some(half::f16::from_f64(number?))
                .filter(|x| fits(x.to_f64()))
                .map(|x| x.to_le_bytes().to_vec()),
            Type::Bf16 => Some(half::bf16::from_f64(number?))
                .filter(|x| fits(x.to_f64()))
                .map(|x| x.to_le_bytes().to_vec()),
            Type::F32 => {
                text.parse().ok().filter(|&x: &f32| fits(x.into())).map(|x| x.to_le_bytes().to_vec())
            }
            Type::F64 => number.map(|x| x.to_le_bytes().to_vec()),
        }
    }

    pub fn is_integer(self) -> bool {
        matches!(self, Type::Unsigned(_) | Type::Signed(_))
    }

    /// The little-endian bytes of `number`. The number must be in range, and whole for integer types. The
    /// remaining bytes are zero.
    pub fn number(self, number: f64) -> [u8; 8] {
        match self {
            Type::Unsigned(_) | Type::Signed(_) => number as u64,
            Type::F16 => half::f16::from_f64(number).to_bits().into(),
            Type::Bf16 => half::bf16::from_f64(number).to_bits().into(),
            Type::F32 => (number as f32).to_bits().into(),
            Type::F64 => number.to_bits(),
        }
        .to_le_bytes()
    }

    pub fn decode(self, bytes: &[u8]) -> Number {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(wide);
        Number::Float(match self {
            Type::Unsigned(_) => return Number::Integer(raw.into()),
            Type::Signed(bytes) => {
                let shift = 64 - 8 * bytes as u32;
                return Number::Integer(((raw << shift) as i64 >> shift).into());
            }
            Type::F16 => half::f16::from_bits(raw as u16).to_f64(),
            Type::Bf16 => half::bf16::from_bits(raw as u16).to_f64(),
            Type::F32 => f64::from(f32::from_bits(raw as u32)),
            Type::F64 => f64::from_bits(raw),
        })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Unsigned(bytes) => write!(f, "u{}", 8 * bytes),
            Type::Signed(bytes) => write!(f, "s{}", 8 * bytes),
            Type::F16 => f.write_str("f16"),
            Type::Bf16 => f.write_str("bf16"),
            Type::F32 => f.write_str("f32"),
            Type::F64 => f.write_str("f64"),
        }
    }
}
