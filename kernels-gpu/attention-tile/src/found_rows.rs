//! Rows of a cache that a warp has looked up, for copies by threads.
use crate::listed::NONE;
use crate::rows::CacheRows;
use crate::table::chunk_in;
use crate::{FoundSlots, ListedRows};
use spec::{Cache, Element};
use tile::Warp;
use tile::layout::CHUNK;
use tile::pipeline::FoundRows;

/// A warp's rows of a stage of 64 keys, of which each of a warpgroup's four warps has 16. Lane `i` has the
/// first chunks of rows `i` and `i + 32`, or twice that of the half with the warp's rows.
pub struct RowsOfStage<'p> {
    cache: &'p Cache,
    found: [u32; 2],
}

// SAFETY: a row begins with a chunk of a page, and has no more chunks than `Cache` promises. Chunks are
// 16-byte aligned.
unsafe impl FoundRows for RowsOfStage<'_> {
    #[inline(always)]
    fn row(&self, row: u32, warp: Warp) -> (u64, u32) {
        // A warp has 16 rows, which lie in one half.
        let half = if row < 32 { self.found[0] } else { self.found[1] };
        let chunk = warp.shuffle(half, row % 32);
        let from = self.cache.keys.wrapping_add(chunk as u64 * CHUNK as u64);
        (from, if chunk == NONE { 0 } else { self.cache.chunks })
    }
}

impl<'p> ListedRows<'p> {
    /// The rows with these slots.
    #[inline(always)]
    pub fn rows(&self, FoundSlots(slots): FoundSlots, warp: Warp) -> RowsOfStage<'p> {
        let slot = if warp.index() % 4 < 2 { slots[0] } else { slots[1] };
        RowsOfStage { cache: self.cache, found: [self.chunk(slot); 2] }
    }
}

/// The block table's entries for a stage of 64 keys. Lane `i` of each warp has those of rows `i` and
/// `i + 32`.
#[derive(Clone, Copy)]
pub struct FoundPages([u32; 2]);

impl<'p, E: Element, const C: usize> CacheRows<'p, E, C> {
    /// Looks up the pages of the 64 rows from `first` on.
    #[inline(always)]
    pub fn find(&self, first: u32, warp: Warp) -> FoundPages {
        FoundPages([0, 32].map(|below| self.page(first + warp.lane() + below)))
    }

    /// The 64 rows from `first` on, which lie in these pages.
    #[inline(always)]
    pub fn rows_in(&self, first: u32, FoundPages(pages): FoundPages, warp: Warp) -> RowsOfStage<'p> {
        let row = |half: usize| first + warp.lane() + 32 * half as u32;
        let found = |half: usize| chunk_in(self.cache, pages[half], row(half)) + self.head;
        let or_none = |half: usize| if row(half) < self.rows { found(half) } else { NONE };
        RowsOfStage { cache: self.cache, found: [or_none(0), or_none(1)] }
    }
}
