//! Tensor maps: tensors as TMA sees them.

/// A tensor map (`CUtensorMap`), TMA's description of a tensor. Its content is opaque: the driver encodes it.
/// TMA reads the tensor map from the launch's parameter, so a kernel with a tensor map needs
/// [`crate::Kernel::PARAM_ALIGN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The map's 128 bytes.
    pub words: [u64; 16],
}

impl TensorMap {
    /// Alignment of a tensor map's address, in bytes.
    pub const ALIGN: u32 = 64;
    /// A tensor map that the driver has not encoded yet. A copy through it fails.
    pub const EMPTY: TensorMap = TensorMap { words: [0; 16] };
}

/// The tensor map of a varlen tensor. For TMA, the tensor ends where a sequence ends, and integers on the
/// device determine that end. A box reads 0 beyond the end and does not write there.
///
/// The dimensions are column, row, head, sequence's end, and [`RaggedMap::END`]. If rows are `s` bytes apart,
/// the strides are `[s, head, s, 2^34 - s]` bytes. Take row `i` of a sequence of `n` rows that ends before
/// row `e` of the tensor. The row's coordinates are `[END - n + i, head, e, END]`. The last coordinate moves
/// the address `END` rows back, because `END * 2^34` is 2^64 and addresses wrap there. The address is
/// therefore the address of row `e - n + i`. The row dimension has `END` rows, so exactly the rows before `e`
/// exist.
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

    /// Stride of the last coordinate in bytes, if rows are `row_bytes` apart. The stride moves the address
    /// `END` rows back.
    pub const fn back(row_bytes: u64) -> u64 {
        (1 << 34) - row_bytes
    }
}
