//! KV caches, as kernels see them: plain data without padding, with equal bytes on both sides.
use crate::{DType, Element, FastDiv, Scheduled};

/// A KV cache: `[page][row][head][column]`. The column's stride is one element; the other strides are free,
/// and are the same for keys and values. Row `i` of sequence `b` is row `i % page` of page
/// `table[b][i / page]`. A dense cache has no table: sequence `b` is page `b`.
///
/// The host has checked that base addresses are multiples of 16 bytes, that strides count whole 16-byte
/// chunks, and that 32 bits number the chunks of all pages. The host has also checked that the table has
/// `columns` entries per sequence, and that no sequence may have more rows than these pages hold. The host
/// has *not* checked the table's contents. At an invalid page index, a kernel reads the last page, or zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Device address of the first key.
    pub keys: u64,
    /// Device address of the first value.
    pub values: u64,
    /// Device address of the block table's page indices, 32 bits each; 0 for a dense cache.
    pub table: u64,
    /// Number of 16-byte chunks from one page to the next page.
    pub page_chunks: u32,
    /// Number of 16-byte chunks from one row to the next row.
    pub row_chunks: u32,
    /// Number of 16-byte chunks from one head to the next head.
    pub head_chunks: u32,
    /// Number of pages, at least 1.
    pub pages: u32,
    /// Number of entries from one sequence's row of the table to the next sequence's row.
    pub table_stride: u32,
    /// Number of entries in a row of the table, at least 1.
    pub columns: u32,
    /// Rows per page.
    pub page: FastDiv,
    /// Number of 16-byte chunks per row, which is the head dim.
    pub chunks: u32,
}

/// Slots of a KV cache: slot `slot` names row `slot % page` of page `slot / page`. The slots live in device
/// memory, and the host has not checked them. A kernel skips a slot that is negative or beyond all pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Device address of the first slot, a multiple of a slot's size.
    pub base: u64,
    /// Number of slots.
    pub count: u32,
    /// 1 if slots are i64, 0 if they are i32.
    pub wide: u32,
}

contract::described! {
    /// Scales: one f32 for all heads, or one per head and sequence. In a cache of [`crate::Int8`], every row
    /// has scales: one per head and slot, where [`Slots`] says which row is a slot's.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct PerHead {
        /// Device address of the first scale, a multiple of 4; 0 if `value` is the scale.
        base: u64,
        /// Bytes from one sequence's scales to the next sequence's scales; or from one slot's to the next
        /// slot's, below 2^32.
        sequence_bytes: u64,
        /// Bytes from one head's scale to the next head's scale.
        head_bytes: u64,
        /// The scale of all heads, if the host knows it.
        value: f32,
        /// Padding: 0.
        reserved: u32,
    }
}

/// The scales of keys and of values in a kernel's parameters, as a type: `()` if there are none, or
/// `[PerHead; 2]`.
pub trait CacheScales: Copy {
    /// The parameters of one of Hopper's kernels.
    type Hopper: Scheduled;
}

/// Bytes of shared memory for the scales of `rows` rows of keys and of values of type `E`.
pub(crate) const fn row_scales_bytes<E: Element>(rows: usize) -> usize {
    if matches!(E::DTYPE, DType::Int8) { rows * 2 * size_of::<f32>() } else { 0 }
}

contract::no_padding! {
    Cache {
        keys, values, table, page_chunks, row_chunks, head_chunks, pages, table_stride, columns,
        page, chunks
    }
    Slots { base, count, wide }
    PerHead { base, sequence_bytes, head_bytes, value, reserved }
}

/// The alignment of keys in pages, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// 16 consecutive keys, from a multiple of 16 on, lie in one page.
    Tiles,
    /// Every key may lie in another page.
    Rows,
}
impl PageKind {
    /// The name of this page kind in entry symbols.
    pub const fn name(self) -> &'static str {
        match self {
            PageKind::Tiles => "tiles",
            PageKind::Rows => "rows",
        }
    }
}
