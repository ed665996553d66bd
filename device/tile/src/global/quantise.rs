//! Symmetric quantisation of rows to integers of eight bits, with one scale per row.
use crate::Warp;

/// The scale of one row: the largest magnitude divided by 127. A row of zeros has the scale 0. A row with an
/// infinity or a NaN has the scale NaN, so that attention to this row is NaN, as without quantisation.
#[derive(Clone, Copy)]
pub struct RowQuantiser {
    scale: f32,
}

/// The largest integer. There is no -128: magnitudes are symmetric.
const MOST: f32 = 127.0;

impl RowQuantiser {
    /// The scale of a row that the warp's lanes have, eight columns per part. Columns that do not exist are
    /// zeros.
    #[inline(always)]
    pub fn new<const PARTS: usize>(parts: [[f32; 8]; PARTS], warp: Warp) -> Self {
        let mut largest = 0;
        for part in parts {
            for x in part {
                // As integers, magnitudes have the order of their values, with infinity and NaN above all
                // numbers.
                largest = largest.max(x.to_bits() & 0x7fff_ffff);
            }
        }
        // The lanes may come from two branches, for example of columns that are rotated and that are not.
        warp.sync();
        Self::of(warp.largest(largest))
    }

    /// The scale for this largest magnitude.
    #[inline(always)]
    fn of(bits: u32) -> Self {
        let largest = f32::from_bits(bits);
        RowQuantiser { scale: if bits < f32::INFINITY.to_bits() { largest / MOST } else { f32::NAN } }
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
        let byte = |x: f32| {
            let quotient = if self.scale > 0.0 { x / self.scale } else { 0.0 };
            (quotient.clamp(-MOST, MOST) + ROUNDS).to_bits() & 0xff
        };
        let word = |i: usize| byte(x[i]) | byte(x[i + 1]) << 8 | byte(x[i + 2]) << 16 | byte(x[i + 3]) << 24;
        [word(0), word(4)]
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
