//! Keys and values in pages as the copy engine sees them.
use crate::table::page;
use cuda_std::tma;
use spec::{Cache, PageBoxes, PagedMap, RaggedMap, TensorMap};
use tile::{Map, Panels, Steps};

/// A row of a head of a sequence's keys, or values, as a [`PagedMap`] is told of it.
#[derive(Clone, Copy)]
pub struct RowOfCache {
    /// Of which tables and sizes count alone.
    cache: Cache,
    boxes: PageBoxes,
    sequence: u32,
    head: u32,
    row: u32,
    /// Of the sequence.
    rows: u32,
}

impl RowOfCache {
    /// Row `row` of the first `rows` of a sequence, which may be behind them: a multiple of a box's rows.
    /// `boxes` are those of the launch, whose maps all have them.
    #[inline(always)]
    pub fn new(cache: &Cache, boxes: PageBoxes, sequence: u32, head: u32, row: u32, rows: u32) -> Self {
        RowOfCache { cache: *cache, boxes, sequence, head, row, rows }
    }
}

/// Keys, or values, in the pages of a cache: the kind of map that a [`PagedMap`] is.
#[derive(Clone, Copy)]
pub struct InPages;

// SAFETY: the boxes that begin so many boxes apart are a panel's rows, shared by all copiers; all panels are
// the tile.
unsafe impl Map for InPages {
    type Data = PagedMap;
    type At = RowOfCache;
    #[inline(always)]
    fn encoded(data: &PagedMap) -> &TensorMap {
        &data.map
    }
    #[inline(always)]
    fn down(at: RowOfCache, rows: u32) -> RowOfCache {
        RowOfCache { row: at.row + rows, ..at }
    }
    /// Pages of 16 at 0.81 to 0.97 of the speed of packed keys, 0.51 to 0.62 by one thread (H200, D = 128).
    const COPIERS: u32 = 4;
    #[inline(always)]
    fn has_some(at: &RowOfCache, rows: u32, copier: u32) -> bool {
        copier * at.boxes.rows() < rows
    }
    /// Box after box, each in one page, whose number a thread waits for: so several share them.
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, at: RowOfCache, full: u32, copier: u32) {
        let [begin, step] = [copier, Self::COPIERS].map(|boxes| boxes * at.boxes.rows());
        for first in (Steps { at: begin, step, end: tile.rows() }) {
            let row = at.row + first;
            let (number, (_, within)) = (page(&at.cache, at.sequence, row), at.cache.page.div_rem(row));
            // Rows of the sequence from the page's first on; of a page that the cache has not, none.
            let rest = at.rows.saturating_sub(row - within).min(at.cache.page.get());
            let own = if number < at.cache.pages { rest } else { 0 };
            let (row, end) =
                (RaggedMap::END - own + within, if own > 0 { number * at.boxes.pitch() + own } else { 0 });
            tile.each(to + first * tile.row_bytes(), |to, column| {
                // SAFETY: the caller's promise; so many rows of a panel are a box, as the host has said.
                unsafe { tma::load_5d(to, map, [column, row, at.head, end, RaggedMap::END], full) }
            })
        }
    }
}
