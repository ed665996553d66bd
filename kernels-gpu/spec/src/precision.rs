//! The precision of products, as a value.

/// The precision of attention's products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Products of the inputs' elements, as for all other requests.
    #[default]
    Inputs,
    /// Scores are products of int8, as with `Int8Fp8`; probabilities and values have the inputs' precision.
    /// Relative to exact attention, the sum of all errors is at most 3 % of the sum of all magnitudes.
    Int8F16,
    /// Scores are products of int8: queries with a scale per row, keys with a scale per token and head, less
    /// their mean. Probabilities and values are e4m3; sums of 64 keys are added in f32. Relative to exact
    /// attention, the sum of all errors is at most 5 % of the sum of all magnitudes. On a KV cache of int8,
    /// keys are what the cache holds.
    Int8Fp8,
    /// Q, K, V and probabilities are e4m3, with a scale per batch and key head for each tensor; keys less
    /// their mean. Sums of 512 keys are added in f32. Relative to exact attention, the sum of all errors is
    /// at most 10 % of the sum of all magnitudes, but for small weights: key blocks come from the last to the
    /// first, and weights below 2^-10 of the largest so far become multiples of 2^-13. If many nearly equal
    /// ones have a third of a row's weight, the sum of errors may be 85 % (docs/limits.md).
    Fp8,
}

impl Precision {
    /// The name in plans, errors and options.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Inputs => "inputs",
            Precision::Int8F16 => "int8-f16",
            Precision::Int8Fp8 => "int8-fp8",
            Precision::Fp8 => "fp8",
        }
    }
}
