//! Rows, values per row, and integers in global memory.
use crate::group::Capability;
use crate::layout;
use contract::{Element, Integers, Tensor, Vector};
use core::marker::PhantomData;
use cuda_std::memory::{ld_global_nc_b32, ld_global_nc_b32_if, st_global_b32_if};

/// One head of a tensor: rows of up to `C` base tiles of `E`. The host has checked that base and stride are
/// multiples of 16 bytes.
#[derive(Clone, Copy)]
pub struct GlobalRows<E, const C: usize> {
    pub(crate) base: u64,
    pub(crate) row_bytes: u32,
    pub(crate) rows: u32,
    /// Number of 16-byte chunks per row. Chunks beyond this number read as zero and are not written.
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

    /// Returns these rows with the column bound of `other`. The caller ensures that both bounds are equal.
    /// The two tensors then share one register for the bound.
    #[inline(always)]
    pub fn as_wide_as<const W: usize>(self, other: &GlobalRows<E, W>) -> Self {
        GlobalRows { chunks: other.chunks, ..self }
    }

    /// These rows, as rows of up to `W` base tiles.
    #[inline(always)]
    pub fn retyped<const W: usize>(self) -> GlobalRows<E, W> {
        let GlobalRows { base, row_bytes, rows, chunks, .. } = self;
        GlobalRows { base, row_bytes, rows, chunks, element: PhantomData }
    }

    /// Rows `first..first + rows`. These rows must exist, because later accesses are only checked against
    /// `rows`.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        GlobalRows { base: self.base.wrapping_add(first as u64 * self.row_bytes as u64), rows, ..self }
    }

    /// One row of `C` base tiles at `base`, which must exist, at a multiple of 16.
    #[inline(always)]
    pub(crate) fn row_of(base: u64) -> Self {
        let chunks = (C * 16 * E::BYTES) as u32 / layout::CHUNK;
        GlobalRows { base, row_bytes: 0, rows: 1, chunks, element: PhantomData }
    }

    /// The number of rows.
    #[inline(always)]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// One 32-bit word of a chunk of a row, or 0 if the word does not exist. No thread may write the tensor
    /// while the kernel runs.
    #[inline(always)]
    pub(crate) fn word(&self, row: u32, chunk: u32, word: u32) -> u32 {
        if row >= self.rows || chunk >= self.chunks {
            return 0;
        }
        let within = (chunk * layout::CHUNK + word * 4) as u64;
        let at = self.base.wrapping_add(row as u64 * self.row_bytes as u64).wrapping_add(within);
        // SAFETY: row and chunk exist, and base and stride are multiples of 16, as `GlobalRows` promises.
        // Kernels do not write memory that they read through this instruction.
        unsafe { ld_global_nc_b32(at) }
    }

    /// [`word`](Self::word) without a branch, so that the loads of several words are in flight together.
    #[inline(always)]
    pub(crate) fn predicated_word(&self, row: u32, chunk: u32, word: u32) -> u32 {
        let within = (chunk * layout::CHUNK + word * 4) as u64;
        let at = self.base.wrapping_add(row as u64 * self.row_bytes as u64).wrapping_add(within);
        // SAFETY: the load happens only if row and chunk exist. Otherwise as in `word`.
        unsafe { ld_global_nc_b32_if(at, row < self.rows && chunk < self.chunks) }
    }
}

/// One f32 per row of a head.
#[derive(Clone, Copy)]
pub struct GlobalVec {
    /// The device address, or 0 if the caller does not want the values.
    pub(crate) base: u64,
    pub(crate) rows: u32,
}

impl GlobalVec {
    /// Head `head` of batch `batch`, with `rows` rows.
    #[inline(always)]
    pub fn new(vector: &Vector, batch: u32, head: u32, rows: u32) -> Self {
        let offset = (batch as u64)
            .wrapping_mul(vector.batch_bytes)
            .wrapping_add((head as u64).wrapping_mul(vector.head_bytes));
        GlobalVec { base: if vector.base == 0 { 0 } else { vector.base.wrapping_add(offset) }, rows }
    }

    /// The numbers at these places of another vector, which has the layout of `vector`, the vector of these
    /// numbers.
    #[inline(always)]
    pub fn beside(self, vector: &Vector, other: &Vector) -> Self {
        let distance = other.base.wrapping_sub(vector.base);
        GlobalVec { base: if self.base == 0 { 0 } else { self.base.wrapping_add(distance) }, ..self }
    }

    /// This vector, or, without the condition, none of its rows.
    #[inline(always)]
    pub fn only_if(self, condition: bool) -> Self {
        GlobalVec { rows: if condition { self.rows } else { 0 }, ..self }
    }

    /// Rows `first..first + rows`, which must exist.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        GlobalVec { base: if self.base == 0 { 0 } else { self.base.wrapping_add(first as u64 * 4) }, rows }
    }
}

/// Integers in device memory. No thread writes them while the kernel runs.
#[derive(Clone, Copy)]
pub struct GlobalInts<'p>(&'p Integers);

impl<'p> GlobalInts<'p> {
    /// The integers that a kernel's parameter describes.
    #[inline(always)]
    pub fn new(integers: &'p Integers) -> Self {
        GlobalInts(integers)
    }

    /// Whether the number of integers is 0.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0.count() == 0
    }

    /// Integer `i`, or the nearest integer that exists, or 0 if none exists. The function has no branch.
    #[inline(always)]
    pub fn nearest(self, i: u32) -> i32 {
        let i = i.min(self.0.count().wrapping_sub(1));
        // SAFETY: an integer with this index exists unless the table is empty, and the base is a multiple of
        // 4, as `Integers` promises. Kernels that read integers do not write them.
        unsafe { ld_global_nc_b32_if(self.0.base().wrapping_add(i as u64 * 4), !self.is_empty()) as i32 }
    }

    /// The f32 whose bits are integer `i`, or the nearest integer that exists.
    #[inline(always)]
    pub fn nearest_f32(self, i: u32) -> f32 {
        f32::from_bits(self.nearest(i) as u32)
    }

    /// Integer `i`, or 0 if the integer does not exist.
    #[inline(always)]
    pub fn get(self, i: u32) -> i32 {
        if i >= self.0.count() {
            return 0;
        }
        // SAFETY: the integer exists, and the base is a multiple of 4, as `Integers` promises; kernels that
        // read integers do not write them.
        unsafe { ld_global_nc_b32(self.0.base().wrapping_add(i as u64 * 4)) as i32 }
    }
}

/// Integers in device memory that a kernel writes, and does not read.
#[derive(Clone, Copy)]
pub struct FillInts<'p>(&'p Integers);

impl<'p> FillInts<'p> {
    /// The integers of a kernel's parameter.
    #[inline(always)]
    pub fn new(integers: &'p Integers, _: &impl Capability) -> Self {
        FillInts(integers)
    }

    /// Stores integer `i` if `is_mine` is true and the integer exists. No branch.
    #[inline(always)]
    pub fn store(self, i: u32, x: u32, is_mine: bool) {
        let at = self.0.base().wrapping_add(i as u64 * 4);
        // SAFETY: the store happens only if the integer exists, and the base is a multiple of 4, as
        // `Integers` promises.
        unsafe { st_global_b32_if(at, x, is_mine && i < self.0.count()) }
    }
}
