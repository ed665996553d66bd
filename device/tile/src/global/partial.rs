//! Rows of f32 in global memory to which several thread blocks contribute.
use crate::global::GlobalVec;
use crate::group::{Capability, ThreadGroup, sealed::Sealed};
use crate::mma::Acc;
use crate::{Block, Ended, Warp};
use contract::{FastDiv, Kernel, Partials};
use cuda_std::memory::{
    ld_global_b32, ld_global_v4_b32, st_global_b32, st_global_v2_b32, st_global_v2_b32_if, st_global_v4_b32,
};

/// Rows of f32 with `C` base tiles each: the rows of one head in one slice.
#[derive(Clone, Copy)]
pub struct PartialRows<const C: usize> {
    base: u64,
    rows: u32,
}

/// The index of a head's first row in a slice, counted over all slices.
#[inline(always)]
fn first_row(partials: &Partials, slice: u32, head: u32) -> u64 {
    (slice as u64 * partials.heads as u64 + head as u64) * partials.rows as u64
}

/// The number of rows of a head in a slice.
#[inline(always)]
fn rows(partials: &Partials, slice: u32, head: u32) -> u32 {
    if slice < partials.slices.get() && head < partials.heads { partials.rows } else { 0 }
}

/// Eight columns of one row of `C` base tiles, among all rows of all heads. Two threads of a launch never
/// have the same chunk.
pub struct OwnChunk<const C: usize> {
    head: u32,
    row: u32,
    chunk: u32,
}

impl<const C: usize> Sealed for OwnChunk<C> {}
impl<const C: usize> Capability for OwnChunk<C> {}

impl<const C: usize> OwnChunk<C> {
    /// Number of chunks of a row.
    const ACROSS: u32 = C as u32 * 2;

    /// This thread's chunk. A head has `rows` rows.
    #[inline(always)]
    pub fn new<K: Kernel>(rows: FastDiv, block: &Block<K>) -> Self {
        let thread = block.launch_thread();
        let (head, row) = rows.div_rem(thread / Self::ACROSS);
        OwnChunk { head, row, chunk: thread % Self::ACROSS }
    }

    /// Index of the head, counted over all batches. If the thread has no chunk, the index is past the last
    /// head.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.head
    }

    #[inline(always)]
    pub(crate) fn row(&self) -> u32 {
        self.row
    }

    #[inline(always)]
    pub(crate) fn chunk(&self) -> u32 {
        self.chunk
    }
}

impl<const C: usize> PartialRows<C> {
    const ROW_BYTES: u64 = C as u64 * 64;

    /// The rows of head `head`, counted over all batches, in slice `slice`. There are no rows if the head or
    /// the slice does not exist.
    #[inline(always)]
    pub fn new(partials: &Partials, slice: u32, head: u32) -> Self {
        let offset = first_row(partials, slice, head) * Self::ROW_BYTES;
        PartialRows { base: partials.rows_base.wrapping_add(offset), rows: rows(partials, slice, head) }
    }

    /// Stores `acc` to those of the rows `row0..` that exist. Four lanes write 32 bytes of a row at a time,
    /// which is one sector.
    #[inline(always)]
    pub fn store<const W: usize>(&self, acc: &Acc<W, C>, row0: u32, warp: Warp) {
        acc.each_pair(warp, |row, column, lo, hi| self.store_pair(row0 + row, column, [lo, hi]));
    }

    /// [`PartialRows::store`] with predicates instead of branches, so that the warp stays converged.
    #[inline(always)]
    pub fn store_together<const W: usize>(&self, acc: &Acc<W, C>, row0: u32, warp: Warp) {
        acc.each_pair(warp, |row, column, lo, hi| {
            let (row, pair) = (row0 + row, [lo, hi].map(f32::to_bits));
            // SAFETY: the row exists if the predicate is true. Columns are even, and the base is a multiple
            // of 16, as `Partials` promises.
            unsafe { st_global_v2_b32_if(self.at(row, column), pair, row < self.rows) }
        });
    }

    /// Writes zeros to those of the rows `row0..row0 + rows` that exist. All threads of the group take part.
    #[inline(always)]
    pub fn clear<W: ThreadGroup>(&self, row0: u32, rows: u32, group: &W) {
        let pairs = C as u32 * 8;
        for i in 0..(rows * pairs).div_ceil(W::THREADS) {
            let at = i * W::THREADS + group.member();
            let (row, pair) = (at / pairs, at % pairs);
            if row < rows {
                self.store_pair(row0 + row, pair * 2, [0.0; 2]);
            }
        }
    }

    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> u64 {
        self.base.wrapping_add(row as u64 * Self::ROW_BYTES + column as u64 * 4)
    }

    #[inline(always)]
    fn store_pair(&self, row: u32, column: u32, x: [f32; 2]) {
        if row < self.rows {
            // SAFETY: the row exists, columns are even, and the base is a multiple of 16, as `Partials`
            // promises.
            unsafe { st_global_v2_b32(self.at(row, column), x.map(f32::to_bits)) }
        }
    }

    /// The thread's own chunk, or zeros if the row does not exist.
    #[inline(always)]
    pub fn load_own(&self, own: &OwnChunk<C>, _: Ended) -> [f32; 8] {
        if own.row >= self.rows {
            return [0.0; 8];
        }
        let at = self.base.wrapping_add(own.row as u64 * Self::ROW_BYTES + own.chunk as u64 * 32);
        // SAFETY: row and chunk exist, and the base is a multiple of 16, as `Partials` promises.
        let ([a, b, c, d], [e, f, g, h]) =
            unsafe { (ld_global_v4_b32(at), ld_global_v4_b32(at.wrapping_add(16))) };
        [a, b, c, d, e, f, g, h].map(f32::from_bits)
    }
}

/// One row of a head, with its value, in consecutive slices. The row has `C` base tiles. The slices of a row
/// are adjacent in memory (`[head][row][slice]`), so one address leads to all of them.
#[derive(Clone, Copy)]
pub struct RowSlices<const C: usize> {
    /// The address of the row in the first slice.
    row: u64,
    value: u64,
    count: u32,
}

impl<const C: usize> RowSlices<C> {
    /// Row `row` of head `head` in slices `first..first + count`. Slices that do not exist are omitted.
    #[inline(always)]
    pub fn new(
        partials: &Partials,
        first: u32,
        count: u32,
        head: u32,
        row: u32,
        _: &impl Capability,
    ) -> Self {
        let (rows, slices) = (partials.rows, partials.slices.get());
        let count =
            if row < rows && head < partials.heads { count.min(slices.saturating_sub(first)) } else { 0 };
        let at = (head as u64 * rows as u64 + row as u64) * slices as u64 + first as u64;
        RowSlices {
            row: partials.rows_base.wrapping_add(at * PartialRows::<C>::ROW_BYTES),
            value: partials.values_base.wrapping_add(at * 4),
            count,
        }
    }

    /// Whether the row has no slice.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The slices after the first `slices`.
    #[inline(always)]
    pub fn skip(self, slices: u32) -> Self {
        RowSlices {
            row: self.row.wrapping_add(slices as u64 * PartialRows::<C>::ROW_BYTES),
            value: self.value.wrapping_add(slices as u64 * 4),
            count: self.count.saturating_sub(slices),
        }
    }

    /// The value in slice `i`, or `other` if the slice does not exist.
    #[inline(always)]
    pub fn value(self, i: u32, other: f32, _: Ended) -> f32 {
        if i >= self.count {
            return other;
        }
        // SAFETY: the slice and its row exist, and the base is a multiple of 4, as `Partials` promises.
        f32::from_bits(unsafe { ld_global_b32(self.value.wrapping_add(i as u64 * 4)) })
    }

    /// Stores the value in slice `i`, if the slice exists.
    #[inline(always)]
    pub fn store_value(self, i: u32, x: f32) {
        if i < self.count {
            // SAFETY: the reason above holds here too.
            unsafe { st_global_b32(self.value.wrapping_add(i as u64 * 4), x.to_bits()) }
        }
    }

    #[inline(always)]
    fn at(self, i: u32, quad: u32) -> u64 {
        self.row.wrapping_add(i as u64 * PartialRows::<C>::ROW_BYTES + quad as u64 * 16)
    }

    /// Columns `4 * quad..` in slice `i`, or zeros if they do not exist.
    #[inline(always)]
    pub fn quad(self, i: u32, quad: u32, _: Ended) -> [f32; 4] {
        if i >= self.count || quad >= C as u32 * 4 {
            return [0.0; 4];
        }
        // SAFETY: slice, row and columns exist, and the base is a multiple of 16, as `Partials` promises.
        unsafe { ld_global_v4_b32(self.at(i, quad)) }.map(f32::from_bits)
    }

    /// Stores columns `4 * quad..` in slice `i`, if they exist.
    #[inline(always)]
    pub fn store_quad(self, i: u32, quad: u32, x: [f32; 4]) {
        if i < self.count && quad < C as u32 * 4 {
            // SAFETY: the reason above holds here too.
            unsafe { st_global_v4_b32(self.at(i, quad), x.map(f32::to_bits)) }
        }
    }
}

impl GlobalVec {
    /// The values of head `head`, counted over all batches, in slice `slice`. There are no values if the head
    /// or the slice does not exist.
    #[inline(always)]
    pub fn from_partials(partials: &Partials, slice: u32, head: u32) -> Self {
        let base = partials.values_base.wrapping_add(first_row(partials, slice, head) * 4);
        GlobalVec { base, rows: rows(partials, slice, head) }
    }
}
