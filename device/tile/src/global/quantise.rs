//! Symmetric quantisation of rows to integers of eight bits, with one scale per row.
use crate::Warp;
use cuda_std::math::fma;

/// The scale of one row: the largest magnitude divided by 127. A row of zeros has the scale 0. A row with an
/// infinity or a NaN has the scale NaN, so that attention to this row is NaN, as without quantisation.
#[derive(Clone, Copy)]
pub struct RowQuantiser {
    scale: f32,
    /// A power of two, by which the row and its scale are multiplied before the division.
    up: f32,
    /// 1 / (scale * up).
    inverse: f32,
}

/// The largest integer. There is no -128: magnitudes are symmetric.
const MOST: f32 = 127.0;

impl RowQuantiser {
    /// The scale of a row that the warp's lanes have, eight columns per part. Columns that do not exist are
    /// zeros.
    #[inline(always)]
    pub fn new<const PARTS: usize>(parts: [[f32; 8]; PARTS], warp: Warp) -> Self {
        let largest = Self::largest(parts);
        // The lanes may come from two branches, for example of columns that are rotated and that are not.
        warp.sync();
        Self::of(warp.largest(largest))
    }

    /// The scale of a row that half of the warp's lanes have. The other half has another row.
    #[inline(always)]
    pub fn of_half(part: [f32; 8], warp: Warp) -> Self {
        let largest = Self::largest([part]);
        // The halves come from two branches.
        warp.sync();
        Self::of(warp.largest_of_half(largest))
    }

    /// The scale of a row that four lanes have, two columns per word.
    #[inline(always)]
    pub(crate) fn of_quad(words: &[u32], unpack: impl Fn(u32) -> [f32; 2], warp: Warp) -> Self {
        let mut largest = 0;
        for word in words {
            let [x, y] = unpack(*word).map(|x| x.to_bits() & 0x7fff_ffff);
            largest = largest.max(x).max(y);
        }
        // Of magnitudes, `max` would ignore NaN.
        let most = |a: f32, b: f32| f32::from_bits(a.to_bits().max(b.to_bits()));
        Self::of(warp.quad(f32::from_bits(largest), most).to_bits())
    }

    /// The bits of the largest magnitude.
    #[inline(always)]
    fn largest<const PARTS: usize>(parts: [[f32; 8]; PARTS]) -> u32 {
        let mut largest = 0;
        for part in parts {
            for x in part {
                // As integers, magnitudes have the order of their values, with infinity and NaN above all
                // numbers.
                largest = largest.max(x.to_bits() & 0x7fff_ffff);
            }
        }
        largest
    }

    /// The scale for this largest magnitude, given by its bits.
    #[inline(always)]
    pub(super) fn of(bits: u32) -> Self {
        let largest = f32::from_bits(bits);
        let scale = if bits < f32::INFINITY.to_bits() { largest / MOST } else { f32::NAN };
        // With small scales, the inverse would overflow and remainders would underflow.
        let up = if scale < f32::from_bits(67 << 23) { f32::from_bits(191 << 23) } else { 1.0 };
        RowQuantiser { scale, up, inverse: 1.0 / (scale * up) }
    }

    /// The scale.
    #[inline(always)]
    pub fn scale(self) -> f32 {
        self.scale
    }

    /// Divides eight columns by the scale, rounds the quotients to nearest even, and clamps them to +-127.
    #[inline(always)]
    pub fn round(self, x: [f32; 8]) -> [u32; 2] {
        // This sum rounds to an integer, whose low byte is the sum's low byte.
        const ROUNDS: f32 = 12_582_912.0;
        let scale = self.scale * self.up;
        let byte = |x: f32| {
            // The correctly rounded quotient (Markstein 1990), in a third of a division's instructions.
            let x = x * self.up;
            let near = x * self.inverse;
            let quotient = fma(fma(-near, scale, x), self.inverse, near);
            (quotient.clamp(-MOST, MOST) + ROUNDS).to_bits() & 0xff
        };
        let word = |i: usize| byte(x[i]) | byte(x[i + 1]) << 8 | byte(x[i + 2]) << 16 | byte(x[i + 3]) << 24;
        [0, 4].map(|i| if self.scale > 0.0 { word(i) } else { 0 })
    }

    /// [`RowQuantiser::round`] for four columns.
    #[inline(always)]
    pub fn round_four(self, [a, b, c, d]: [f32; 4]) -> u32 {
        let [word, _] = self.round([a, b, c, d, 0.0, 0.0, 0.0, 0.0]);
        word
    }
}

#[cfg(test)]
mod tests {
    use super::RowQuantiser;

    /// The scale of a row with this largest magnitude, and the integer of `x`.
    fn of(largest: f32, x: f32) -> (f32, i8) {
        let row = RowQuantiser::of(largest.abs().to_bits());
        (row.scale(), (row.round([x; 8])[1] >> 24) as u8 as i8)
    }

    #[test]
    fn integers_are_the_nearest_and_even_between_two() {
        for x in -254..=254 {
            let x = x as f32 / 2.0;
            let nearest = x.round_ties_even();
            assert_eq!(of(127.0, x), (1.0, nearest as i8), "{x}");
            assert_eq!(of(127.0 / 1024.0, x / 1024.0), (1.0 / 1024.0, nearest as i8), "{x} / 1024");
        }
    }

    /// The quotients have all exponents and mantissas that rows of 16 bits may have.
    #[test]
    fn integers_are_those_of_the_rounded_quotient() {
        let mut bits = 1_u64;
        let mut draw = || {
            bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (bits >> 33) as u32
        };
        for _ in 0..200_000 {
            let largest = f32::from_bits((draw() % (255 << 7)) << 16);
            let x = largest * ((draw() % 257) as f32 / 256.0);
            let x = f32::from_bits(x.to_bits() & 0xffff_0000);
            let scale = largest / 127.0;
            let integer = if scale > 0.0 { (x / scale).round_ties_even().min(127.0) } else { 0.0 };
            assert_eq!(of(largest, x), (scale, integer as i8), "{x:e} of {largest:e}");
        }
    }

    #[test]
    fn extremes_have_scales() {
        let smallest = f32::from_bits(1);
        for (largest, x, scale, integer) in [
            (0.0, 0.0, 0.0, 0),
            (f32::MAX, f32::MAX, f32::MAX / 127.0, 127),
            (f32::MAX, -f32::MAX, f32::MAX / 127.0, -127),
            // The scale vanishes, so the row is 0.
            (smallest, smallest, 0.0, 0),
            // A scale of few bits makes quotients too large, and the integers are clamped.
            (smallest * 190.0, smallest * 190.0, smallest, 127),
            (smallest * 190.0, smallest * -190.0, smallest, -127),
        ] {
            assert_eq!(of(largest, x), (scale, integer), "{x:e} of {largest:e}");
        }
    }

    #[test]
    fn rows_that_are_not_finite_have_no_scale() {
        for largest in [f32::INFINITY, f32::NAN] {
            let (scale, integer) = of(largest, 1.0);
            assert!(scale.is_nan() && integer == 0, "{largest}: {scale} {integer}");
        }
    }
}
