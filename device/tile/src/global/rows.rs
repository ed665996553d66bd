//! Rows in global memory, and walks over them.
use crate::layout;
use contract::{Element, Integers, Tensor, Vector};
use core::marker::PhantomData;
use cuda_std::memory::ld_global_nc_b32;

/// One head of a tensor: rows of up to `C` base tiles of `E`; base and stride are multiples of 16 bytes (the
/// host has checked).
#[derive(Clone, Copy)]
pub struct GlobalRows<E, const C: usize> {
    pub(crate) base: u64,
    pub(crate) row_bytes: u32,
    pub(crate) rows: u32,
    /// 16-byte chunks of a row that exist; the others read as zero and are not written.
    pub(crate) chunks: u32,
    element: PhantomData<E>,
}

impl<E: Element, const C: usize> GlobalRows<E, C> {
    /// Head `head` of batch `batch`.
    #[inline(always)]
    pub fn new(tensor: &Tensor, batch: u32, head: u32) -> Self {
        let offset = (batch as u64)
            .wrapping_mul(tensor.batch_bytes)
            .wrapping_add((head as u64).wrapping_mul(tensor.head_bytes));
        GlobalRows {
            base: tensor.base.wrapping_add(offset),
            row_bytes: tensor.row_bytes,
            rows: tensor.rows,
            chunks: tensor.chunks,
            element: PhantomData,
        }
    }

    /// The same rows, known to have the columns of `other`: one bound in a register instead of two.
    #[inline(always)]
    pub fn as_wide_as(self, other: &Self) -> Self {
        GlobalRows { chunks: other.chunks, ..self }
    }

    /// Rows `first..first + rows` of these, which they must be. Both are known before any row is touched: to
    /// whoever cuts them they are the last word.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        GlobalRows { base: self.base.wrapping_add(first as u64 * self.row_bytes as u64), rows, ..self }
    }

    /// How many there are.
    #[inline(always)]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// A word of a chunk of a row, of a tensor that nobody writes while the kernel runs; 0 where there is
    /// none.
    #[inline(always)]
    pub(crate) fn word(&self, row: u32, chunk: u32, word: u32) -> u32 {
        if row >= self.rows || chunk >= self.chunks {
            return 0;
        }
        let within = (chunk * layout::CHUNK + word * 4) as u64;
        let at = self.base.wrapping_add(row as u64 * self.row_bytes as u64).wrapping_add(within);
        // SAFETY: row and chunk exist, and base and stride are multiples of 16, as `GlobalRows` promises;
        // what kernels read through it they do not write.
        unsafe { ld_global_nc_b32(at) }
    }
}

/// One f32 for each row of a head.
#[derive(Clone, Copy)]
pub struct GlobalVec {
    /// 0 where it is not wanted.
    pub(crate) base: u64,
    pub(crate) rows: u32,
}

impl GlobalVec {
    /// Head `head` of batch `batch`, of `rows` rows.
    #[inline(always)]
    pub fn new(vector: &Vector, batch: u32, head: u32, rows: u32) -> Self {
        let offset = (batch as u64)
            .wrapping_mul(vector.batch_bytes)
            .wrapping_add((head as u64).wrapping_mul(vector.head_bytes));
        GlobalVec { base: if vector.base == 0 { 0 } else { vector.base.wrapping_add(offset) }, rows }
    }

    /// Rows `first..first + rows` of these, which they must be.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        GlobalVec { base: if self.base == 0 { 0 } else { self.base.wrapping_add(first as u64 * 4) }, rows }
    }
}

/// Integers that stand on the device, which nobody writes while the kernel runs.
#[derive(Clone, Copy)]
pub struct GlobalInts<'p>(&'p Integers);

impl<'p> GlobalInts<'p> {
    /// Those that a kernel is told of.
    #[inline(always)]
    pub fn new(integers: &'p Integers) -> Self {
        GlobalInts(integers)
    }

    /// Whether there are any.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0.count == 0
    }

    /// Integer `i`; 0 where there is none.
    #[inline(always)]
    pub fn get(self, i: u32) -> i32 {
        if i >= self.0.count {
            return 0;
        }
        // SAFETY: it exists, and the base is a multiple of 4, as `Integers` promises; kernels that read them
        // do not write them.
        unsafe { ld_global_nc_b32(self.0.base.wrapping_add(i as u64 * 4)) as i32 }
    }
}
