//! The reference computes in two arithmetics: the exact arithmetic uses f64, and the naive arithmetic uses 16
//! bits.
use crate::e4m3;
use ferroflash::DType;
use half::{bf16, f16};
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// Returns the largest relative error of rounding to `dtype`.
pub fn unit_roundoff(dtype: DType) -> f64 {
    2f64.powi(-1 - dtype.mantissa_bits())
}

/// A floating-point type that the reference can compute in.
pub(super) trait Real:
    Copy
    + PartialOrd
    + AddAssign
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Send
    + Sync
{
    const ZERO: Self;
    const LOWEST: Self;
    fn from_f32(x: f32) -> Self;
    fn to_f64(self) -> f64;
    fn exp(self) -> Self;
    fn tanh(self) -> Self;
}

macro_rules! real {
    ($type:ident) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const LOWEST: Self = $type::NEG_INFINITY;
            fn from_f32(x: f32) -> Self {
                x.into()
            }
            fn to_f64(self) -> f64 {
                self.into()
            }
            fn exp(self) -> Self {
                self.exp()
            }
            fn tanh(self) -> Self {
                self.tanh()
            }
        }
    };
}
real!(f32);
real!(f64);

/// The precision of an intermediate result.
pub(super) trait Arithmetic: Copy + Sync {
    type Real: Real;
    /// Rounds the result of a step to this arithmetic's storage type.
    fn round(self, x: Self::Real) -> Self::Real {
        x
    }
    /// Rounds an element of K, which is multiplied with its row's scale, to the storage type.
    fn round_key(self, x: f32) -> Self::Real {
        self.round(Self::Real::from_f32(x))
    }
    /// Rounds an element of V like an element of K.
    fn round_value(self, x: f32) -> Self::Real {
        self.round_key(x)
    }
}

/// The exact arithmetic: f64 without rounding.
#[derive(Clone, Copy)]
pub(super) struct Exact;
impl Arithmetic for Exact {
    type Real = f64;
}

/// The exact arithmetic on elements of K and V that are rounded to a type.
#[derive(Clone, Copy)]
pub(super) struct OnElementsOf(pub DType);
impl Arithmetic for OnElementsOf {
    type Real = f64;
    fn round_key(self, x: f32) -> f64 {
        f64::from(decode(self.0, encode(self.0, f64::from(x))))
    }
}

/// The exact arithmetic on the magnitudes of V.
#[derive(Clone, Copy)]
pub(super) struct OnMagnitudes;
impl Arithmetic for OnMagnitudes {
    type Real = f64;
    fn round_value(self, x: f32) -> f64 {
        f64::from(x.abs())
    }
}

/// Declares naive arithmetic in a type: each step computes in f32 and rounds its result to the type.
macro_rules! naive {
    ($($name:ident: $type:ident),*) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl Arithmetic for $name {
            type Real = f32;
            fn round(self, x: f32) -> f32 {
                $type::from_f32(x).to_f32()
            }
        }
    )*};
}
naive!(NaiveF16: f16, NaiveBf16: bf16);

/// Returns the value of `bits` in `dtype`.
pub(super) fn decode(dtype: DType, bits: u16) -> f32 {
    match dtype {
        DType::F16 => f16::from_bits(bits).to_f32(),
        DType::Bf16 => bf16::from_bits(bits).to_f32(),
        // Of the numbers that have scales.
        DType::E4m3 | DType::E4m3Scaled => e4m3::decode(bits as u8),
        DType::Int8 => f32::from(bits as u8 as i8),
        other => not_computed(other),
    }
}

/// Returns `x` rounded to an f32 whose last bit says whether the rounding was exact: an inexact result is the
/// neighbour with an odd mantissa. A further rounding to fewer bits then gives the nearest number to `x`. A
/// conversion of `x` by its upper bits, or by the nearest f32, rounds twice.
fn to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    if back == x || x.is_nan() {
        return nearest;
    }
    f32::from_bits((nearest.to_bits() - u32::from(back.abs() > x.abs())) | 1)
}

/// Returns the bits of `x`, rounded once to `dtype`.
pub(super) fn encode(dtype: DType, x: f64) -> u16 {
    match dtype {
        DType::F16 => f16::from_f32(to_odd(x)).to_bits(),
        DType::Bf16 => bf16::from_f32(to_odd(x)).to_bits(),
        DType::E4m3 | DType::E4m3Scaled => u16::from(e4m3::encode(x)),
        DType::Int8 => u16::from(x.round_ties_even().clamp(-127.0, 127.0) as i8 as u8),
        other => not_computed(other),
    }
}

/// Converts a number of [`e4m3`] to a wider type, exactly.
pub fn widen_e4m3(bits: u8, to: DType) -> u16 {
    encode(to, f64::from(e4m3::decode(bits)))
}

/// Rounds the product of a number of [`e4m3`] and a scale to a wider type. The product is an f32 first, as in
/// kernels.
pub fn scaled_e4m3(bits: u8, scale: f32, to: DType) -> u16 {
    encode(to, f64::from(e4m3::decode(bits) * scale))
}

/// Converts an integer of eight bits to a wider type, exactly.
pub fn widen_int8(bits: u8, to: DType) -> u16 {
    encode(to, f64::from(bits as i8))
}

/// Panics, because no tensor of attention has this type. The planner refuses such a tensor, and the program
/// `ferroflash` refuses to read one.
fn not_computed(dtype: DType) -> ! {
    unreachable!("attention in {}", dtype.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two neighbours, the nearest number wins, and the even one in the middle.
    #[test]
    fn encode_rounds_once() {
        for (dtype, infinity) in [(DType::F16, 0x7c00), (DType::Bf16, 0x7f80)] {
            for bits in 0..infinity - 1 {
                let [low, high] = [bits, bits + 1].map(|bits| f64::from(decode(dtype, bits)));
                let middle = (low + high) / 2.0;
                let even = bits + bits % 2;
                for (x, expected) in
                    [(low, bits), (middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1)]
                {
                    assert_eq!(encode(dtype, x), expected, "{} {x:e}", dtype.name());
                    assert_eq!(encode(dtype, -x), expected | 0x8000, "{} -{x:e}", dtype.name());
                }
            }
            assert_eq!([f64::MAX, f64::INFINITY].map(|x| encode(dtype, x)), [infinity; 2]);
            assert!(decode(dtype, encode(dtype, f64::NAN)).is_nan());
        }
    }
}
