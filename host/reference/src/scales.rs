//! Scales of a KV cache's values, applied to the reference.
use super::arithmetic::{decode, encode};
use super::tolerance::{Reference, allowed};
use ferroflash::DType;

impl Reference {
    /// Returns the reference for values that are multiplied by `scale`, with O in `dtype`.
    #[must_use]
    pub fn scale_values(mut self, dtype: DType, scale: f32) -> Self {
        self.exact.out.iter_mut().for_each(|x| *x *= f64::from(scale));
        // Naive attention rounds O after it multiplies O by the scale. This rounding makes an error even if
        // the unscaled O was exact.
        let rounding = |x: &f64| (f64::from(decode(dtype, encode(dtype, *x))) - x).abs();
        let rounding = self.exact.out.iter().map(rounding).fold(0.0, f64::max);
        self.naive_error = rounding.max(self.naive_error * f64::from(scale));
        // If scaled values overflow the type here, they overflow in naive attention too.
        let infinity = encode(dtype, f64::INFINITY);
        if self.exact.out.iter().any(|x| encode(dtype, x.abs()) == infinity) {
            self.naive_error = f64::INFINITY;
        }
        self.tolerance = allowed(self.naive_error, &self.exact.out, dtype);
        self.sum_tolerance *= f64::from(scale);
        self
    }
}
