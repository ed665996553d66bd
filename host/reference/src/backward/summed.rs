//! Gradients of numbers that many scores read: of sinks, and of the entries of a table.
use crate::arithmetic::unit_roundoff;
use crate::tolerance::max_difference;
use ferroflash::DType;

/// The gradient of one such number: a sum over rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SummedGradient {
    /// The gradient.
    pub value: f64,
    /// The sum of the magnitudes of the products whose sum the gradient is.
    pub(super) sum: f64,
    /// The root of the sum of the squares of the products with O.
    pub(super) root: f64,
}

impl SummedGradient {
    /// Adds the gradient of other rows.
    pub(super) fn add(&mut self, other: &Self) {
        self.value += other.value;
        self.sum += other.sum;
        self.root = self.root.hypot(other.root);
    }
}

/// Returns the tolerance of such gradients: that of other gradients, and four times the unit roundoff of
/// `dtype` times [`SummedGradient::root`].
///
/// There are few of these numbers, so the naive error may be small by chance. Every implementation reads the
/// O that the forward has rounded. The errors of its elements are independent, so that their sum is at most a
/// few times the root of the sum of their squares.
pub(super) fn tolerance(exact: &[SummedGradient], naive: &[SummedGradient], dtype: DType) -> f64 {
    let [values, of_naive] = [exact, naive].map(|all| all.iter().map(|of| of.value).collect::<Vec<_>>());
    let most = |of: fn(&SummedGradient) -> f64| exact.iter().map(of).fold(0.0, f64::max);
    2.0 * max_difference(&of_naive, &values)
        + 1e-5
        + most(|of| of.sum) * 2f64.powi(-24)
        + 4.0 * unit_roundoff(dtype) * most(|of| of.root)
}
