//! Tensor maps: tensors as TMA sees them.

/// A tensor map (`CUtensorMap`), TMA's description of a tensor. It is opaque: the driver encodes it. TMA
/// reads it from the launch's parameter, so a kernel with a tensor map needs [`crate::Kernel::PARAM_ALIGN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The map's 128 bytes.
    pub words: [u64; 16],
}

impl TensorMap {
    /// Alignment of its address, in bytes.
    pub const ALIGN: u32 = 64;
    /// A tensor map that the driver has not encoded yet. A copy through it fails.
    pub const EMPTY: TensorMap = TensorMap { words: [0; 16] };
}

/// The tensor map of a varlen tensor. For TMA, the tensor ends where a sequence ends, and integers on the
/// device determine that end. A box reads 0 beyond the end and does not write there.
///
/// The dimensions are column, row, head, sequence's end, and [`RaggedMap::END`]. With rows `s` bytes apart,
/// the strides are `[s, head, s, 2^34 - s]` bytes. Take row `i` of a sequence of `n` rows that ends before
/// row `e` of the tensor. Its coordinates are `[END - n + i, head, e, END]`. The last coordinate leads `END`
/// rows back, because `END * 2^34` is 2^64 and addresses wrap there. The address is therefore that of row
/// `e - n + i`. The row dimension has `END` rows, so exactly the rows before `e` exist.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaggedMap {
    /// The tensor map, encoded by the driver.
    pub map: TensorMap,
}

crate::no_padding! {
    TensorMap { words }
    RaggedMap { map }
}

impl RaggedMap {
    /// The row at which every sequence ends.
    pub const END: u32 = 1 << 30;

    /// Stride of the last coordinate in bytes, for rows `row_bytes` apart: it leads `END` rows back.
    pub const fn back(row_bytes: u64) -> u64 {
        (1 << 34) - row_bytes
    }
}
