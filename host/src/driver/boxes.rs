//! Tensors as a copy engine moves them.
use crate::DType;

/// A tensor in device memory, and the boxes of it that Hopper's copy engine moves: what
/// [`Driver::tensor_map`](crate::Driver::tensor_map) encodes. What a box has beyond the tensor reads as 0 and
/// is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boxes {
    /// Device address of the first element. A multiple of 16.
    pub address: u64,
    /// Bytes from one row, head and batch to the next: multiples of 16 below 2^40, none 0.
    pub strides: [u64; 3],
    /// Columns, rows, heads and batches of the tensor.
    pub extents: [u32; 4],
    /// Columns and rows of a box, which is of one head and batch. Its rows have 64 or 128 bytes, and lie
    /// swizzled by as many in shared memory.
    pub of: [u32; 2],
    /// Element type: f16 or bf16.
    pub dtype: DType,
}

impl Boxes {
    /// Bytes of a box's row.
    pub const fn row_bytes(&self) -> u32 {
        self.of[0] * self.dtype.bytes() as u32
    }

    /// [`Boxes::extents`] as the driver and the simulator take them.
    pub(super) fn dims(&self) -> [u64; 4] {
        self.extents.map(u64::from)
    }

    /// The same of a box.
    pub(super) const fn box_dims(&self) -> [u32; 4] {
        [self.of[0], self.of[1], 1, 1]
    }
}
