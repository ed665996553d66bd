//! Scales of rows in products with few columns: a score's row is a key, and a probability's row is a value.
use crate::Warp;
use crate::mma::{ColAcc, ColFrag, ColVec, TensorCore};
use crate::shared::StageScales;

impl<const G: usize> ColAcc<1, G> {
    /// Multiplies each row by the scale of its key.
    #[inline(always)]
    pub fn scale_rows(&mut self, scales: &impl StageScales, warp: Warp) {
        let row = warp.lane / 4;
        let by = [scales.load(0, row), scales.load(0, row + 8)];
        self.each(|_, _, i, x| *x *= by[i / 2]);
    }
}

/// The power of two by which a warp divides the scales of values. 16-bit probabilities times scales would
/// otherwise leave the range of their type. All quotients are below 2. The power grows with the scales, and O
/// is then rescaled, as for the maximum of the scores.
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

    /// The largest power of two that is not above `x`, within the powers that have a normal inverse.
    #[inline(always)]
    fn of(x: f32) -> Self {
        let exponent = (x.to_bits() >> 23).clamp(15, 252);
        let [power, inverse] = [exponent, 254 - exponent].map(|bits| f32::from_bits(bits << 23));
        ValueScale { power, inverse }
    }

    /// Multiplies each row of `probs` by the scale of its value, divided by the power of two. If a scale needs
    /// a larger power, rescales `acc_o` first.
    #[inline(always)]
    pub fn apply<E: TensorCore, const D: usize, const G: usize>(
        &mut self,
        probs: ColFrag<E, 1, G>,
        scales: &impl StageScales,
        acc_o: &mut ColAcc<D, G>,
        warp: Warp,
    ) -> ColFrag<E, 1, G> {
        let row = warp.lane % 4 * 2;
        let [low, high] = [scales.load_pair(1, row), scales.load_pair(1, row + 8)];
        let most = low[0].abs().max(low[1].abs()).max(high[0].abs().max(high[1].abs()));
        if warp.any(most >= self.power * 2.0) {
            // The lanes of a quad have all rows.
            let new = Self::of(warp.quad(most, f32::max));
            acc_o.scale_columns(&ColVec::splat(self.power * new.inverse));
            *self = new;
        }
        let by = [low, high].map(|[x, y]| E::pack(x * self.inverse, y * self.inverse));
        let mut to = probs;
        for g in 0..G {
            for i in 0..2 {
                to.0[0][g][i] = E::multiply(to.0[0][g][i], by[i]);
            }
        }
        to
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
