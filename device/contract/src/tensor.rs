//! A tensor as kernels see it: plain data, no padding, the same bytes on both sides.

/// Q, K, V or O: `[batch][head][row][column]` with any strides but the column's, which is one element.
/// The host has checked that the base and all strides are multiples of 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Device address of the first element.
    pub base: u64,
    /// Bytes from one batch to the next (two's complement where negative).
    pub batch_bytes: u64,
    /// Bytes from one head to the next (two's complement where negative).
    pub head_bytes: u64,
    /// Bytes from one row to the next, below 2^27.
    pub row_bytes: u32,
    /// Rows of a head: the sequence length.
    pub rows: u32,
    /// 16-byte chunks of a row that exist: head dim / 8.
    pub chunks: u32,
    /// Zero.
    pub reserved: u32,
}

/// One f32 for each row of each head: `[batch][head][row]`, rows contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Device address, a multiple of 4; 0 where it is not wanted.
    pub base: u64,
    /// Bytes from one batch to the next.
    pub batch_bytes: u64,
    /// Bytes from one head to the next.
    pub head_bytes: u64,
}
