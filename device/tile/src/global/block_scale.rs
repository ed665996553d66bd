//! The scale of a block of columns that a kernel rounds to e4m3.
use crate::Warp;

/// The scale of a block: the largest magnitude divided by 448, which is e4m3's largest number, and at least
/// the smallest normal f32. A block with an infinity or a NaN has the scale NaN, so that attention to its row
/// is NaN, as without quantisation.
#[derive(Clone, Copy)]
pub struct BlockScale(f32);

/// The largest e4m3.
const MOST: f32 = 448.0;

impl BlockScale {
    /// The scale of the block that eight neighbouring lanes have, eight columns per part.
    #[inline(always)]
    pub fn of_eight_lanes<const PARTS: usize>(parts: [[f32; 8]; PARTS], warp: Warp) -> Self {
        let mut largest = 0;
        for i in 0..PARTS {
            largest = Self::largest(parts[i]).max(largest);
        }
        // The lanes may come from two branches, of columns that are rotated and that are not.
        warp.sync();
        Self::of(warp.largest_of_eight(largest))
    }

    /// The bits of the largest magnitude. LLVM does not unroll a loop over the columns.
    #[inline(always)]
    fn largest(part: [f32; 8]) -> u32 {
        // As integers, magnitudes have the order of their values, with infinity and NaN above all numbers.
        let [a, b, c, d, e, f, g, h] = part.map(|x| x.to_bits() & 0x7fff_ffff);
        a.max(b).max(c.max(d)).max(e.max(f).max(g.max(h)))
    }

    /// The scale for this largest magnitude, given by its bits.
    #[inline(always)]
    fn of(bits: u32) -> Self {
        let scale = (f32::from_bits(bits) / MOST).max(f32::MIN_POSITIVE);
        BlockScale(if bits < f32::INFINITY.to_bits() { scale } else { f32::NAN })
    }

    /// The scale.
    #[inline(always)]
    pub fn value(self) -> f32 {
        self.0
    }

    /// Divides eight columns by the scale. A product with the inverse would give other bits than other
    /// libraries.
    #[inline(always)]
    pub fn divide(self, x: [f32; 8]) -> [f32; 8] {
        x.map(|x| x / self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::BlockScale;

    #[test]
    fn scales_are_normal_numbers() {
        let of = |largest: f32| BlockScale::of(largest.to_bits()).value();
        assert_eq!((of(448.0), of(1.0)), (1.0, 1.0 / 448.0));
        assert_eq!((of(0.0), of(f32::from_bits(1))), (f32::MIN_POSITIVE, f32::MIN_POSITIVE));
        assert_eq!(of(f32::MAX), f32::MAX / 448.0);
        assert_eq!(BlockScale::of(f32::MIN_POSITIVE.to_bits()).divide([f32::MIN_POSITIVE; 8]), [1.0; 8]);
    }

    #[test]
    fn blocks_that_are_not_finite_have_no_scale() {
        for largest in [f32::INFINITY, f32::NAN] {
            let scale = BlockScale::of(largest.to_bits());
            assert!(scale.value().is_nan() && scale.divide([1.0; 8]).iter().all(|x| x.is_nan()), "{largest}");
        }
    }
}
