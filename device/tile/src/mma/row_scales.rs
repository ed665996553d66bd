//! Scales of rows in products with few columns: a score's row is a key, and a probability's row is a value.
//! Rows of keys that do not exist.
use crate::Warp;
use crate::mma::ColAcc;
use crate::shared::StageScales;
use cuda_std::math::{fma, lg2};

/// The largest exponent of a value's scale; the smallest exponent is `-MOST`. Sums of probabilities relative
/// to the largest product of a probability and a scale then stay within f32.
const MOST: f32 = 48.0;
const LARGEST: f32 = f32::from_bits((127 + MOST as u32) << 23);
const SMALLEST: f32 = f32::from_bits((127 - MOST as u32) << 23);

/// The scales of this lane's two rows of a tile of keys, and of the tile of their values.
pub struct LaneScales {
    keys: [f32; 2],
    values: [f32; 2],
    /// 0, or NaN for a value whose scale is above [`LARGEST`], infinite or NaN.
    invalid: [f32; 2],
}

impl LaneScales {
    /// Loads the scales of this lane's rows. A scale of a value below 2^-48 becomes 2^-48, so its value is
    /// practically 0.
    #[inline(always)]
    pub fn load(scales: &impl StageScales, warp: Warp) -> Self {
        let [keys, values] = scales.load_lane(warp.lane / 4);
        LaneScales {
            keys,
            // The maximum of NaN and a number is the number; `clamp` would return NaN.
            values: values.map(|scale| scale.max(SMALLEST)).map(|scale| scale.min(LARGEST)),
            // A product above `LARGEST` times this factor is infinite.
            invalid: values.map(|scale| scale * (f32::MAX / LARGEST) * 0.0),
        }
    }

    /// The scales of values. All of them are finite and above 0, so that a product with the probability 0 of
    /// a hidden key is 0.
    #[inline(always)]
    pub fn values(&self) -> [f32; 2] {
        self.values
    }

    /// The logarithms to base 2 of the scales of values.
    #[inline(always)]
    pub fn values_log2(&self) -> [f32; 2] {
        self.values.map(lg2)
    }
}

impl<const G: usize> ColAcc<1, G> {
    /// Multiplies each row by the scale of its key. If the scale of the key's value is invalid, the row
    /// becomes NaN: a mask then hides it.
    #[inline(always)]
    pub fn scale_keys(&mut self, by: &LaneScales) {
        self.each(|_, _, i, x| *x = fma(*x, by.keys[i / 2], by.invalid[i / 2]));
    }

    /// Multiplies this lane's two rows by two numbers.
    #[inline(always)]
    pub fn scale_rows(&mut self, by: [f32; 2]) {
        self.each(|_, _, i, x| *x *= by[i / 2]);
    }

    /// Keeps those of this lane's two rows that are `true` in `keep`. All other values become minus infinity.
    #[inline(always)]
    pub fn keep_rows(&mut self, keep: [bool; 2]) {
        self.each(|_, _, i, x| {
            if !keep[i / 2] {
                *x = f32::NEG_INFINITY
            }
        });
    }

    /// `self * by`, plus one number for each of this lane's two rows.
    #[inline(always)]
    pub fn scaled_plus_rows(mut self, by: f32, rows: [f32; 2]) -> Self {
        self.each(|_, _, i, x| *x = fma(*x, by, rows[i / 2]));
        self
    }
}
