//! Packed GQA: one tile holds rows of all query heads that share a key head.
use cuda_std::memory::{ld_global_nc_b32_or_zero, ld_global_v2_b32, st_global_b32, st_global_v2_b32};
use spec::{Element, FastDiv, Lse, Tensor};
use tile::Warp;
use tile::copy::{TileWalk, Walk};
use tile::group::{Capability, ThreadGroup};
use tile::mma::WordRows;
use tile::shared::SharedTile;

/// Packed GQA: the rows of the `group` query heads that share a key head, in one batch. Row `i` is head `i %
/// group` of the tensor's row `i / group`.
#[derive(Clone, Copy)]
pub struct PackedRows<'p> {
    base: u64,
    row_bytes: u32,
    head_bytes: u64,
    /// Number of 32-bit words per row.
    words: u32,
    /// Index of the first row in the head group.
    first: u32,
    rows: u32,
    group: &'p FastDiv,
}

impl<'p> PackedRows<'p> {
    /// The rows of head group `group` in batch `batch`; a group has `size` heads.
    #[inline(always)]
    pub fn new(tensor: &Tensor, size: &'p FastDiv, batch: u32, group: u32) -> Self {
        let head = group as u64 * size.get() as u64;
        let offset = (batch as u64)
            .wrapping_mul(tensor.batch_bytes)
            .wrapping_add(head.wrapping_mul(tensor.head_bytes));
        PackedRows {
            base: tensor.base.wrapping_add(offset),
            row_bytes: tensor.row_bytes,
            head_bytes: tensor.head_bytes,
            words: tensor.chunks * 4,
            first: 0,
            rows: tensor.rows * size.get(),
            group: size,
        }
    }

    /// The rows `first..first + rows`, without rows that do not exist.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        let left = self.rows.saturating_sub(first);
        PackedRows { first: self.first + first, rows: rows.min(left), ..self }
    }

    /// The number of rows.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.rows
    }

    /// The place of packed row `row`: the row of the tensor, and the head's index in the group.
    #[inline(always)]
    pub fn unpack(&self, row: u32) -> [u32; 2] {
        let (row, head) = self.group.div_rem(self.first + row);
        [row, head]
    }

    /// The address of a row.
    #[inline(always)]
    fn at(&self, row: u32) -> u64 {
        let [row, head] = self.unpack(row);
        let offset =
            (row as u64 * self.row_bytes as u64).wrapping_add((head as u64).wrapping_mul(self.head_bytes));
        self.base.wrapping_add(offset)
    }

    /// Loads two words of a row, columns `4 * quad..` to `4 * quad + 4`. Columns that do not exist are zero.
    #[inline(always)]
    pub fn load_quad(&self, row: u32, quad: u32, _: &impl Capability) -> [u32; 2] {
        if row < self.rows && quad < self.words / 2 {
            // SAFETY: row and words exist, and base and strides are multiples of 16, as `Tensor` promises.
            unsafe { ld_global_v2_b32(self.at(row).wrapping_add(quad as u64 * 8)) }
        } else {
            [0; 2]
        }
    }

    /// Stores two words of a row, columns `4 * quad..` to `4 * quad + 4`, if they exist.
    #[inline(always)]
    pub fn store_quad(&self, row: u32, quad: u32, x: [u32; 2], _: &impl Capability) {
        if row < self.rows && quad < self.words / 2 {
            // SAFETY: row and words exist, and base and strides are multiples of 16, as `Tensor` promises.
            unsafe { st_global_v2_b32(self.at(row).wrapping_add(quad as u64 * 8), x) }
        }
    }

    /// Stores a row's LSE, if the row exists and the LSE is wanted. `batch` and `group` are the arguments of
    /// [`PackedRows::new`].
    #[inline(always)]
    pub fn store_value(&self, lse: &Lse, [batch, group]: [u32; 2], row: u32, x: f32, _: &impl Capability) {
        if lse.base == 0 || row >= self.rows {
            return;
        }
        let [row, head] = self.unpack(row);
        let head = group as u64 * self.group.get() as u64 + head as u64;
        let offset = (batch as u64)
            .wrapping_mul(lse.batch_bytes)
            .wrapping_add(head.wrapping_mul(lse.head_bytes))
            .wrapping_add(row as u64 * 4);
        // SAFETY: the LSE has a value for each row of each head, and is a multiple of 4, as `Lse`
        // promises.
        unsafe { st_global_b32(lse.base.wrapping_add(offset), x.to_bits()) }
    }
}

/// Rows of a tensor that no thread writes while the kernel runs.
impl WordRows for PackedRows<'_> {
    /// The row's address and bound are computed once for all words of the row.
    #[inline(always)]
    fn words(&self, row: u32, from: u32, _: Warp) -> impl Fn(u32) -> u32 + Copy {
        // If `from` is past the last word, this number is negative.
        let left = if row < self.rows { self.words as i32 - from as i32 } else { 0 };
        let at = self.at(row).wrapping_add(from as u64 * 4);
        move |i| {
            // SAFETY: row and word exist where `i` is below `left`, and base and strides are multiples of 16,
            // as `Tensor` promises. Kernels do not write memory that they read through this instruction.
            unsafe { ld_global_nc_b32_or_zero(at.wrapping_add(i as u64 * 4), (i as i32) < left) }
        }
    }
}

/// The tile of the first rows. Rows and columns that do not exist are zero.
// SAFETY: rows and columns of the chunks exist, and base and strides are multiples of 16, as `Tensor`
// promises.
unsafe impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> TileWalk<E, R, C, W>
    for PackedRows<'_>
{
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, group: &W, copy: impl Fn(u32, u32, u64, bool)) {
        let (row, chunk) = Walk::<E, R, C, W>::place(group);
        for i in 0..Walk::<E, R, C, W>::GROUPS {
            let first = i * Walk::<E, R, C, W>::GROUP;
            if first + row < SharedTile::<E, R, C>::ROWS {
                let from = self.at(first + row);
                for panel in 0..Walk::<E, R, C, W>::PANELS {
                    let chunk = panel * Walk::<E, R, C, W>::ACROSS + chunk;
                    let exists = first + row < self.rows && chunk < self.words / 4;
                    copy(first, panel, from.wrapping_add(chunk as u64 * 16), exists)
                }
            }
        }
    }

    /// Goes to another tile of the rows.
    #[inline(always)]
    fn seek(&mut self, tile: u32, _: &W) {
        *self = self.part(tile * SharedTile::<E, R, C>::ROWS, u32::MAX)
    }
}
