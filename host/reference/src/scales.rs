//! Scales of a cache's values, applied to the expected result.
use super::arithmetic::{decode, encode};
use super::tolerance::Reference;
use ferroflash::DType;

impl Reference {
    /// Multiplies the cache's values by `scale`. O has elements of this type.
    #[must_use]
    pub fn scale_values(mut self, dtype: DType, scale: f32) -> Self {
        self.exact.out.iter_mut().for_each(|x| *x *= f64::from(scale));
        // Naive attention rounds O after scaling, even if O was exact before.
        let rounding = |x: &f64| (f64::from(decode(dtype, encode(dtype, *x))) - x).abs();
        let rounding = self.exact.out.iter().map(rounding).fold(0.0, f64::max);
        self.naive_error = rounding.max(self.naive_error * f64::from(scale));
        // If scaled values overflow the type here, they also overflow in naive attention.
        let infinity = encode(dtype, f64::INFINITY);
        if self.exact.out.iter().any(|x| encode(dtype, x.abs()) == infinity) {
            self.naive_error = f64::INFINITY;
        }
        self.tolerance = Reference::allowed(self.naive_error);
        self
    }
}
