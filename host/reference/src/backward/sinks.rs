//! The gradients of sinks.
use crate::arithmetic::unit_roundoff;
use crate::tolerance::max_difference;
use ferroflash::DType;

/// The gradient of a sink: a sum over all rows of its head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SinkGradient {
    /// The gradient.
    pub value: f64,
    /// The sum of the magnitudes of the products whose sum the gradient is.
    pub(super) sum: f64,
    /// The root of the sum of the squares of the products with O.
    pub(super) root: f64,
}

impl SinkGradient {
    /// Adds the gradient of other rows.
    pub(super) fn add(&mut self, other: &Self) {
        self.value += other.value;
        self.sum += other.sum;
        self.root = self.root.hypot(other.root);
    }
}

/// Returns the tolerance of the gradients of sinks: that of other gradients, and four times the unit roundoff
/// of `dtype` times [`SinkGradient::root`].
///
/// A sink has one number per head, so the naive error may be small by chance. Every implementation reads the
/// O that the forward has rounded. The errors of its elements are independent, so that their sum is at most a
/// few times the root of the sum of their squares.
pub(super) fn tolerance(exact: &[SinkGradient], naive: &[SinkGradient], dtype: DType) -> f64 {
    let [values, of_naive] = [exact, naive].map(|all| all.iter().map(|sink| sink.value).collect::<Vec<_>>());
    let most = |of: fn(&SinkGradient) -> f64| exact.iter().map(of).fold(0.0, f64::max);
    2.0 * max_difference(&of_naive, &values)
        + 1e-5
        + most(|sink| sink.sum) * 2f64.powi(-24)
        + 4.0 * unit_roundoff(dtype) * most(|sink| sink.root)
}
