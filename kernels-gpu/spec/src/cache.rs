//! Rows in pages, as kernels see them: plain data, no padding, the same bytes on both sides.
use crate::FastDiv;

/// A cache of keys and values, `[page][row][head][column]` with any strides but the column's, which is one
/// element; both have the same strides. Row `i` of sequence `b` is row `i % page` of page
/// `table[b][i / page]`. A dense cache has no table: sequence `b` is page `b`.
///
/// The host has checked that bases are multiples of 16 bytes, strides count whole 16-byte chunks, the chunks
/// of all pages are numbered in 32 bits, the table has `columns` numbers for each sequence, and no sequence
/// is said to have more rows than so many pages. What is *in* the table nobody has checked: whoever reads it
/// takes the last page for a number that is none, or rows of zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Device address of the first key.
    pub keys: u64,
    /// Device address of the first value.
    pub values: u64,
    /// Device address of the pages' numbers, 32 bits each; 0 for a dense cache.
    pub table: u64,
    /// Chunks from page to page.
    pub page_chunks: u32,
    /// Chunks from row to row.
    pub row_chunks: u32,
    /// Chunks from head to head.
    pub head_chunks: u32,
    /// How many pages there are, at least 1.
    pub pages: u32,
    /// Numbers from one sequence's row of the table to the next.
    pub table_stride: u32,
    /// Numbers in a row of the table, at least 1.
    pub columns: u32,
    /// Rows of a page.
    pub page: FastDiv,
    /// Chunks of a row that exist: head dim in 16-byte units.
    pub chunks: u32,
}

/// Rows of a cache, in device memory: row `slot % page` of page `slot / page`. Nobody has checked them: who
/// reads one takes it for none where it is negative, or beyond all pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Device address of the first, a multiple of their size.
    pub base: u64,
    /// How many there are.
    pub count: u32,
    /// Whether they are i64 (1), and not i32 (0).
    pub wide: u32,
}

/// A number of each head: one f32 for all, or one for each head of each sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerHead {
    /// Device address of the first, a multiple of 4; 0 where it is `value`.
    pub base: u64,
    /// Bytes from one sequence to the next.
    pub sequence_bytes: u64,
    /// Bytes from one head to the next.
    pub head_bytes: u64,
    /// That of all heads, where the host knows it.
    pub value: f32,
    /// Zero.
    pub reserved: u32,
}
