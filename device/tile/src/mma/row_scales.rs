//! Scales of rows in products with few columns: a score's row is a key, and a probability's row is a value.
use crate::Warp;
use crate::mma::{ColAcc, ColVec};
use crate::shared::StageScales;

/// The scales of this lane's two rows of a tile: of keys (0) or of values (1).
#[inline(always)]
fn of_rows(scales: &impl StageScales, which: usize, warp: Warp) -> [f32; 2] {
    let row = warp.lane / 4;
    [scales.load(which, row), scales.load(which, row + 8)]
}

impl<const G: usize> ColAcc<1, G> {
    /// Multiplies each row by the scale of its key.
    #[inline(always)]
    pub fn scale_keys(&mut self, scales: &impl StageScales, warp: Warp) {
        self.scale_rows(of_rows(scales, 0, warp));
    }

    /// Multiplies this lane's two rows by two numbers.
    #[inline(always)]
    pub fn scale_rows(&mut self, by: [f32; 2]) {
        self.each(|_, _, i, x| *x *= by[i / 2]);
    }
}

/// The power of two by which a warp divides the scales of values. 16-bit probabilities times scales would
/// otherwise leave the range of their type. All quotients are below 2, unless a scale is above 2^126. The
/// power grows with the scales, and O is then rescaled, as for the maximum of the scores.
pub struct ValueScale {
    power: f32,
    inverse: f32,
}

impl ValueScale {
    /// The state before the first value.
    #[inline(always)]
    pub fn new() -> Self {
        Self::of(0.0)
    }

    /// The largest power of two that is not above `x`, among the powers that have a normal inverse.
    #[inline(always)]
    fn of(x: f32) -> Self {
        let exponent = (x.to_bits() >> 23).clamp(15, 252);
        let [power, inverse] = [exponent, 254 - exponent].map(|bits| f32::from_bits(bits << 23));
        ValueScale { power, inverse }
    }

    /// The scales of the values of this lane's two rows, divided by the power of two. If a scale needs a
    /// larger power, rescales `acc_o` first.
    #[inline(always)]
    pub fn of_rows<const D: usize, const G: usize>(
        &mut self,
        scales: &impl StageScales,
        acc_o: &mut ColAcc<D, G>,
        warp: Warp,
    ) -> [f32; 2] {
        let of = of_rows(scales, 1, warp);
        let most = of[0].abs().max(of[1].abs());
        if warp.any(most >= self.power * 2.0) {
            let new = Self::of(warp.octet(most, f32::max));
            acc_o.scale_columns(&ColVec::splat(self.power * new.inverse));
            *self = new;
        }
        of.map(|scale| scale * self.inverse)
    }

    /// The factor of O.
    #[inline(always)]
    pub fn factor(&self) -> f32 {
        self.power
    }
}

impl Default for ValueScale {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}
