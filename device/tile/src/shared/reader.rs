//! The addresses that a warp passes to `ldmatrix` in a shared tile.
use crate::shared::SharedTile;
use crate::{Warp, layout};
use contract::Element;
use core::marker::PhantomData;

/// This lane's `ldmatrix` addresses in a tile of `R x C` base tiles: one register for each pattern of the
/// swizzle, plus immediates.
#[derive(Clone, Copy)]
pub(crate) struct Reader<E, const R: usize, const C: usize> {
    patterns: [u32; 4],
    element: PhantomData<E>,
}

impl<E: Element, const R: usize, const C: usize> Reader<E, R, C> {
    /// Bytes from one row of a panel to the next.
    const ROW_BYTES: u32 = layout::row_bytes(SharedTile::<E, R, C>::ROW_CHUNKS);
    /// Number of base tiles across a panel.
    const ACROSS: u32 = Self::ROW_BYTES / 32;

    #[inline(always)]
    fn new(base: u32, lane: u32, order: fn(u32) -> [u32; 2]) -> Self {
        let [row, chunk] = order(lane);
        let first = SharedTile::<E, R, C>::offset(row, chunk);
        let swizzled = first % Self::ROW_BYTES;
        // Column tile `i` of a panel flips those bits of the chunk number that lie above the lowest bit. A
        // base tile begins at the start of a panel row, so its row adds a multiple of `ROW_BYTES`.
        let patterns =
            [0, 1, 2, 3].map(|i| base.wrapping_add(first - swizzled + (swizzled ^ (i % Self::ACROSS * 32))));
        Reader { patterns, element: PhantomData }
    }

    /// A reader for transposed B operands.
    #[inline(always)]
    pub(super) fn rows_first(base: u32, lane: u32) -> Self {
        Self::new(base, lane, layout::rows_first)
    }

    /// A reader for A operands, and for B operands that are read with `.trans`. The addresses of the two
    /// orders differ by one number per lane, which is the same for all patterns. The base contains this
    /// number, so the four registers serve both orders.
    #[inline(always)]
    fn columns_first(base: u32, lane: u32) -> Self {
        let at = |[row, chunk]: [u32; 2]| SharedTile::<E, R, C>::offset(row, chunk);
        let shift = at(layout::columns_first(lane)).wrapping_sub(at(layout::rows_first(lane)));
        Self::rows_first(base.wrapping_add(shift), lane)
    }

    /// The address for base tile `(row, column)`. A base tile has 32 bytes of a row: 16 columns of 16 bits,
    /// or a k-step of 32 columns of eight bits.
    #[inline(always)]
    pub(crate) fn tile(&self, row: usize, column: usize) -> u32 {
        let (panel, within) = (column as u32 / Self::ACROSS, column as u32 % Self::ACROSS);
        self.patterns[within as usize]
            .wrapping_add((panel * SharedTile::<E, R, C>::ROWS + row as u32 * 16) * Self::ROW_BYTES)
    }
}

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    #[inline(always)]
    pub(crate) fn rows_first(&self, warp: Warp) -> Reader<E, R, C> {
        Reader::rows_first(self.base, warp.lane)
    }

    /// A reader that starts at row `first`, which is a multiple of 16.
    #[inline(always)]
    pub(crate) fn columns_first(&self, first: u32, warp: Warp) -> Reader<E, R, C> {
        Reader::columns_first(self.base + Self::offset(first, 0), warp.lane)
    }
}
