//! Scales of a cache's values, in what is right.
use super::arithmetic::{decode, encode};
use super::tolerance::Reference;
use ferroflash::DType;

impl Reference {
    /// The same with values that stand for themselves times `scale`, and O in elements of this type.
    #[must_use]
    pub fn scale_values(mut self, dtype: DType, scale: f32) -> Self {
        self.exact.out.iter_mut().for_each(|x| *x *= f64::from(scale));
        // Naive attention rounds what it has scaled, however exact it was before.
        let rounding = |x: &f64| (f64::from(decode(dtype, encode(dtype, *x))) - x).abs();
        let rounding = self.exact.out.iter().map(rounding).fold(0.0, f64::max);
        self.naive_error = rounding.max(self.naive_error * f64::from(scale));
        // What the scale makes too large for the type is so in naive attention, too.
        let infinity = encode(dtype, f64::INFINITY);
        if self.exact.out.iter().any(|x| encode(dtype, x.abs()) == infinity) {
            self.naive_error = f64::INFINITY;
        }
        self.tolerance = Reference::allowed(self.naive_error);
        self
    }
}
