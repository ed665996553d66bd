//! Element types, their numbers in text and in memory.

use std::fmt;

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
    /// What [`Type::parse`] takes, in words.
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

    /// Little-endian bytes of the number `text`; none where it is no number, or out of range. Hexadecimal
    /// digits are bits, of signed types too.
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
        // What becomes infinite only by rounding is out of range.
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

    /// The bytes of all `numbers`, where each is in range.
    pub fn encode_all(self, numbers: impl Iterator<Item = String>) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(numbers.size_hint().0 * self.bytes());
        for number in numbers {
            bytes.extend(self.encode(&number)?);
        }
        Some(bytes)
    }

    pub fn decode(self, bytes: &[u8]) -> f64 {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(wide);
        match self {
            Type::Unsigned(_) => raw as f64,
            Type::Signed(bytes) => {
                let shift = 64 - 8 * bytes as u32;
                ((raw << shift) as i64 >> shift) as f64
            }
            Type::F16 => half::f16::from_bits(raw as u16).to_f64(),
            Type::Bf16 => half::bf16::from_bits(raw as u16).to_f64(),
            Type::F32 => f64::from(f32::from_bits(raw as u32)),
            Type::F64 => f64::from_bits(raw),
        }
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
