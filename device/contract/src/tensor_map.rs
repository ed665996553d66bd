//! Tensors as a copy engine sees them.

/// A tensor map (`CUtensorMap`): what the copy engine of an sm_90 knows of a tensor. Opaque: the driver
/// encodes it. The engine reads it where the launch's parameter lies, so that a kernel with one wants
/// [`crate::Kernel::PARAM_ALIGN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Its 128 bytes.
    pub words: [u64; 16],
}

impl TensorMap {
    /// What its address is a multiple of.
    pub const ALIGN: u32 = 64;
    /// One that nobody has encoded yet: a copy through it fails.
    pub const EMPTY: TensorMap = TensorMap { words: [0; 16] };
}

/// The map of a tensor whose rows are those of sequences, one behind the other: for the copy engine the
/// tensor ends where a sequence ends, wherever the device's integers say that this is. What a box has beyond
/// reads as 0 and is not written.
///
/// Its dimensions are column, row, head, sequence's end, and [`RaggedMap::END`]; strides are `[s, head, s,
/// 2^34 - s]` bytes, for rows `s` bytes apart. Row `i` of a sequence of `n` rows that ends before row `e` of
/// all is at `[END - n + i, head, e, END]`: so many rows after `e` as `END - n + i`, less `END`, since `END *
/// 2^34` bytes are all of the address space. The row's extent is `END`, so that exactly the rows before `e`
/// exist.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaggedMap {
    /// What the driver encodes.
    pub map: TensorMap,
}

impl RaggedMap {
    /// Where every sequence ends.
    pub const END: u32 = 1 << 30;

    /// How far the last coordinate leads, for rows `row_bytes` apart: `END` of them back.
    pub const fn back(row_bytes: u64) -> u64 {
        (1 << 34) - row_bytes
    }
}
