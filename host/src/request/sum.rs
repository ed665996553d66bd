//! Sums of tensors, such as gradients that several launches or several GPUs have computed.
use super::TensorView;

/// Adds tensors of one shape in f32, in their order, and rounds each sum once. A repeated launch gives
/// identical bits. The kernels stand behind the feature `training`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Sum {
    /// The first tensor, f16 or bf16. The heads of a row and the rows of a batch are contiguous. `elements`
    /// counts the elements of all tensors.
    pub first: TensorView,
    /// Distance in elements from one tensor to the next, a multiple of 8.
    pub apart: usize,
    /// Number of tensors, at least one.
    pub count: usize,
    /// Output: a tensor of the first tensor's shape and dtype, with contiguous heads and rows, too. The
    /// kernel writes all of it. It must not overlap a tensor of the sum.
    pub sum: TensorView,
}

impl Sum {
    /// Creates a sum of `count` tensors that lie `apart` elements from each other.
    pub const fn new(first: TensorView, apart: usize, count: usize, sum: TensorView) -> Self {
        Sum { first, apart, count, sum }
    }

    /// Returns the tensors of a valid sum, and the sum, as rows of one head each. The tensors are the heads
    /// of the first view.
    pub(crate) fn flat(&self) -> [TensorView; 2] {
        let Sum { first, apart, count, sum } = *self;
        let of = |view: TensorView, tensors| {
            let [batch, rows, heads, columns] = view.shape;
            let shape = [batch, rows.saturating_mul(heads), tensors, columns];
            TensorView { shape, strides: [view.strides[0], columns as i64, apart as i64, 1], ..view }
        };
        [of(first, count), of(sum, 1)]
    }
}
