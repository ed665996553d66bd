//! Loads and stores of eight columns of a row in global memory, which are one thread's part of a row.
use crate::mma::Unpack;
use contract::{Bf16, E4m3, Element, F16, F32, Native};
use cuda_std::math;
use cuda_std::memory::{ld_global_v4_b32, st_global_v2_b32, st_global_v4_b32};

/// An element type from which kernels load f32 values.
pub trait LoadEight: Element {
    /// Eight elements as they are in memory.
    type Bits: Copy + Default;

    /// Loads eight elements. Code that loads several times before it converts has all loads in flight.
    ///
    /// # Safety
    /// - `at` is a global address and a multiple of 16, and eight elements may be read there.
    unsafe fn load_bits(at: u64) -> Self::Bits;

    /// Converts eight elements to f32. The conversion is exact.
    fn widen(bits: Self::Bits) -> [f32; 8];

    /// Loads eight elements as f32.
    ///
    /// # Safety
    /// - `at` is a global address and a multiple of 16, and eight elements may be read there.
    #[inline(always)]
    unsafe fn load_eight(at: u64) -> [f32; 8] {
        // SAFETY: the caller keeps the precondition.
        Self::widen(unsafe { Self::load_bits(at) })
    }
}

/// An element type to which kernels round f32 values, to nearest even.
pub trait StoreEight: Element {
    /// Rounds and stores eight elements.
    ///
    /// # Safety
    /// - `at` is a global address and a multiple of 8 elements, and eight elements may be written there.
    unsafe fn store_eight(at: u64, x: [f32; 8]);
}

/// Converts eight elements of 16 bits to f32. The conversion is exact.
#[inline(always)]
pub fn unpack_eight<E: Unpack>(bits: [u32; 4]) -> [f32; 8] {
    let [a, b, c, d] = bits.map(E::unpack);
    [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
}

/// Rounds eight numbers to elements of 16 bits.
#[inline(always)]
pub fn pack_eight<E: Unpack>([a, b, c, d, e, f, g, h]: [f32; 8]) -> [u32; 4] {
    [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)]
}

macro_rules! sixteen_bits {
    ($element:ident) => {
        impl LoadEight for $element {
            type Bits = [u32; 4];
            #[inline(always)]
            unsafe fn load_bits(at: u64) -> [u32; 4] {
                // SAFETY: the caller keeps the precondition.
                unsafe { ld_global_v4_b32(at) }
            }
            #[inline(always)]
            fn widen(bits: [u32; 4]) -> [f32; 8] {
                unpack_eight::<Self>(bits)
            }
        }
        impl StoreEight for $element {
            #[inline(always)]
            unsafe fn store_eight(at: u64, x: [f32; 8]) {
                // SAFETY: the caller keeps the preconditions.
                unsafe { st_global_v4_b32(at, pack_eight::<Self>(x)) }
            }
        }
    };
}
sixteen_bits!(F16);
sixteen_bits!(Bf16);

impl LoadEight for F32 {
    type Bits = [[u32; 4]; 2];
    #[inline(always)]
    unsafe fn load_bits(at: u64) -> [[u32; 4]; 2] {
        // SAFETY: the caller keeps the precondition.
        unsafe { [ld_global_v4_b32(at), ld_global_v4_b32(at.wrapping_add(16))] }
    }
    #[inline(always)]
    fn widen([[a, b, c, d], [e, f, g, h]]: [[u32; 4]; 2]) -> [f32; 8] {
        [a, b, c, d, e, f, g, h].map(f32::from_bits)
    }
}

impl StoreEight for F32 {
    #[inline(always)]
    unsafe fn store_eight(at: u64, x: [f32; 8]) {
        let [a, b, c, d, e, f, g, h] = x.map(f32::to_bits);
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            st_global_v4_b32(at, [a, b, c, d]);
            st_global_v4_b32(at.wrapping_add(16), [e, f, g, h]);
        }
    }
}

/// Stores eight bytes. Each call of `pack` returns two words.
///
/// # Safety
/// - `at` is a global address and a multiple of 8, and eight bytes may be written there.
#[inline(always)]
unsafe fn store_pairs(at: u64, x: [f32; 8], pack: impl Fn(f32, f32) -> u16) {
    let four = |i: usize| pack(x[i], x[i + 1]) as u32 | (pack(x[i + 2], x[i + 3]) as u32) << 16;
    // SAFETY: the caller keeps the preconditions.
    unsafe { st_global_v2_b32(at, [four(0), four(4)]) }
}

impl StoreEight for E4m3 {
    #[inline(always)]
    unsafe fn store_eight(at: u64, x: [f32; 8]) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { store_pairs(at, x, |lo, hi| round_e4m3(lo) as u16 | (round_e4m3(hi) as u16) << 8) }
    }
}

impl StoreEight for Native<E4m3> {
    #[inline(always)]
    unsafe fn store_eight(at: u64, x: [f32; 8]) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { store_pairs(at, x, math::pack_e4m3) }
    }
}

/// Converts `x` to e4m3 like `cvt.rn.satfinite.e4m3x2.f32`: rounded to nearest even, clamped to +-448, and
/// NaN as 0x7f.
#[inline(always)]
fn round_e4m3(x: f32) -> u8 {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    // `NORMAL` is the smallest normal number; the ulp of `SUBNORMAL` is the smallest subnormal number, 2^-9.
    const NORMAL: u32 = 0x3c80_0000;
    const SUBNORMAL: f32 = 16384.0;
    let bits = x.to_bits() & 0x7fff_ffff;
    if bits > INFINITY {
        return 0x7f;
    }
    let most = bits.min(448f32.to_bits());
    let magnitude = if most < NORMAL {
        // This addition rounds.
        (f32::from_bits(most) + SUBNORMAL).to_bits() - SUBNORMAL.to_bits()
    } else {
        // This line removes 20 bits of the mantissa, and rounds to nearest even. The bias of the exponent
        // changes from 127 to 7.
        ((most + 0x7_ffff + (most >> 20 & 1)) >> 20) - (120 << 3)
    };
    magnitude as u8 | (x.to_bits() >> 24 & 0x80) as u8
}

#[cfg(test)]
mod tests {
    use super::round_e4m3;

    /// The number that the definition of e4m3 gives to `bits`.
    fn number(bits: u8) -> f64 {
        let (exponent, mantissa) = ((bits >> 3 & 15) as i32, (bits & 7) as f64);
        if exponent == 0 { mantissa / 512.0 } else { (8.0 + mantissa) * 2f64.powi(exponent - 10) }
    }

    #[test]
    fn rounds_to_the_nearest_of_all_numbers() {
        // The inputs are all e4m3 numbers, all midpoints between two e4m3 numbers, the f32 values next to
        // each of these, and all values of bf16.
        let middles = (0..0x7e).map(|bits| (number(bits) + number(bits + 1)) / 2.0);
        let edges = (0..0x7f).map(number).chain(middles).map(|x| x as f32);
        let around = edges.flat_map(|x| [x.to_bits().wrapping_sub(1), x.to_bits(), x.to_bits() + 1]);
        for bits in around.chain((0..0x7f80).map(|bits| bits << 16)).filter(|bits| *bits < 0x7f80_0000) {
            let x = f32::from_bits(bits);
            let distance = |bits: u8| ((x as f64).min(448.0) - number(bits)).abs();
            let nearest = (0..0x7f)
                .min_by(|&a: &u8, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
            assert_eq!(Some(round_e4m3(x)), nearest, "{x:e}");
            assert_eq!(Some(round_e4m3(-x)), nearest.map(|bits| bits | 0x80), "-{x:e}");
        }
    }

    #[test]
    fn what_is_no_number_stays_none_and_infinities_are_the_largest() {
        for (x, bits) in
            [(f32::NAN, 0x7f), (-f32::NAN, 0x7f), (f32::INFINITY, 0x7e), (f32::NEG_INFINITY, 0xfe)]
        {
            assert_eq!(round_e4m3(x), bits, "{x}");
        }
    }
}
