//! Keys and values in pages, through tensor maps.
use crate::table::page;
use cuda_std::math::opaque;
use cuda_std::tma;
use spec::{Cache, PageBoxes, PagedMap, RaggedMap, TensorMap};
use tile::tma::{MapKind, Panels, RaggedRow};
use tile::{Steps, Warp};

/// The coordinates of one row in a [`PagedMap`]: a row of one head of a sequence's keys (or values).
#[derive(Clone, Copy)]
pub struct PagedRow {
    /// The cache. This type uses only its block table and its sizes.
    cache: Cache,
    boxes: PageBoxes,
    sequence: u32,
    head: u32,
    row: u32,
    /// Number of rows of the sequence.
    rows: u32,
}

impl PagedRow {
    /// Row `row` of a sequence that has `rows` rows. `row` must be a multiple of a box's rows; it may be past
    /// the last row. `boxes` are the boxes of the launch's tensor maps.
    #[inline(always)]
    pub fn new(cache: &Cache, boxes: PageBoxes, sequence: u32, head: u32, row: u32, rows: u32) -> Self {
        PagedRow { cache: *cache, boxes, sequence, head, row, rows }
    }

    /// Calls `copy` with the two coordinates in the map of the box that begins with row `first` of a tile, in
    /// page `number`: its row, and the end of its page's rows.
    #[inline(always)]
    fn in_page<T>(&self, number: u32, first: u32, copy: impl FnOnce(u32, u32) -> T) -> T {
        let row = self.row + first;
        let (_, within) = self.cache.page.div_rem(row);
        // The number of the sequence's rows from the page's first row on; 0 if the page does not exist.
        let rest = self.rows.saturating_sub(row - within).min(self.cache.page.get());
        let own = if number < self.cache.pages { rest } else { 0 };
        let (row, end) =
            (RaggedMap::END - own + within, if own > 0 { number * self.boxes.pitch() + own } else { 0 });
        copy(row, end)
    }

    /// Starts the copies of the box that begins with row `first` of a tile, in page `number`, from column
    /// `FIRST` on.
    ///
    /// # Safety
    /// - The preconditions of [`MapKind::load`] hold. The tile has a box at row `first`.
    #[inline(always)]
    unsafe fn copy_box<const FIRST: u32>(
        &self,
        number: u32,
        first: u32,
        (to, map, tile, full): (u32, u64, Panels, u32),
    ) {
        self.in_page(number, first, |row, end| {
            tile.each(to + first * tile.row_bytes(), |to, column| {
                let at = [FIRST + column, row, self.head, end, RaggedMap::END];
                // SAFETY: the caller keeps the preconditions, and the host has encoded the box's rows.
                unsafe { tma::load_5d(to, map, at, full) }
            })
        })
    }
}

/// A lane's box of keys, or of values, in one page.
#[derive(Clone, Copy)]
pub struct PageBox {
    boxes: PageBoxes,
    head: u32,
    /// The coordinates of the box in the map.
    row: u32,
    end: u32,
}

/// The map kind of [`PagedMap`]. Such a map describes the keys, or the values, in the pages of a cache.
#[derive(Clone, Copy)]
pub struct InPages;

// SAFETY: the producer threads share the boxes; the boxes of a panel cover its rows, and the panels cover the
// tile. A box has at least 8 rows and a tile has at most 256, so the lanes of a warp have all boxes, too.
unsafe impl MapKind for InPages {
    type Data = PagedMap;
    type At = PagedRow;
    type Wide = InWidePages;
    #[inline(always)]
    fn encoded(data: &PagedMap) -> &TensorMap {
        &data.map
    }
    #[inline(always)]
    fn down(at: PagedRow, rows: u32) -> PagedRow {
        PagedRow { row: at.row + rows, ..at }
    }
    /// With four producers, the speed is 0.81 to 0.97 of the speed on varlen keys. With one producer, it is
    /// 0.51 to 0.62 (H200, D = 128, pages of 16 rows).
    const PRODUCERS: u32 = 4;
    #[inline(always)]
    fn has_some(at: &PagedRow, rows: u32, producer: u32) -> bool {
        producer * at.boxes.rows() < rows
    }
    /// Copies a tile box by box. Each box lies in one page. A thread must load each page's index before it
    /// copies the box, so several threads share the boxes.
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, at: PagedRow, full: u32, producer: u32) {
        let [begin, step] = [producer, Self::PRODUCERS].map(|boxes| boxes * at.boxes.rows());
        for first in (Steps { at: begin, step, end: tile.rows() }) {
            let number = page(&at.cache, at.sequence, at.row + first);
            // SAFETY: the caller keeps the preconditions.
            unsafe { at.copy_box::<0>(number, first, (to, map, tile, full)) }
        }
    }

    type Boxes = PageBox;
    /// The lanes look up the pages of all boxes together. Keys and values lie in the same pages, so one
    /// look-up serves both.
    #[inline(always)]
    fn find_boxes(at: PagedRow, warp: Warp) -> PageBox {
        // `opaque`: LLVM would keep several numbers of the lane in registers, from tile to tile.
        let first = opaque(warp.lane()) * at.boxes.rows();
        let number = page(&at.cache, at.sequence, at.row + first);
        at.in_page(number, first, |row, end| PageBox { boxes: at.boxes, head: at.head, row, end })
    }
    #[inline(always)]
    unsafe fn load_boxes(to: u32, map: u64, tile: Panels, of: PageBox, full: u32, lane: u32) {
        let PageBox { boxes, head, row, end } = of;
        let first = opaque(lane) * boxes.rows();
        if first < tile.rows() {
            tile.each(to + first * tile.row_bytes(), |to, column| {
                // SAFETY: the reason in `load` holds here too.
                unsafe { tma::load_5d(to, map, [column, row, head, end, RaggedMap::END], full) }
            })
        }
    }
}

/// The map kind of [`PagedMap`], as [`InPages`], for tiles that begin with any column, or have many panels.
#[derive(Clone, Copy)]
pub struct InWidePages;

// SAFETY: the boxes are those of `InPages`.
unsafe impl MapKind for InWidePages {
    type Data = PagedMap;
    type At = PagedRow;
    type Wide = Self;
    #[inline(always)]
    fn encoded(data: &PagedMap) -> &TensorMap {
        &data.map
    }
    #[inline(always)]
    fn down(at: PagedRow, rows: u32) -> PagedRow {
        InPages::down(at, rows)
    }
    const PRODUCERS: u32 = InPages::PRODUCERS;
    #[inline(always)]
    fn has_some(at: &PagedRow, rows: u32, producer: u32) -> bool {
        InPages::has_some(at, rows, producer)
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, at: PagedRow, full: u32, producer: u32) {
        let [begin, step] = [producer, Self::PRODUCERS].map(|boxes| boxes * at.boxes.rows());
        for first in (Steps { at: begin, step, end: tile.rows() }) {
            let number = page(&at.cache, at.sequence, at.row + first);
            at.in_page(number, first, |row, end| {
                tile.each_of_many(to + first * tile.row_bytes(), |to, column| {
                    let at = [column, row, at.head, end, RaggedMap::END];
                    // SAFETY: the caller keeps the preconditions, and the host has encoded the box's rows.
                    unsafe { tma::load_5d(to, map, at, full) }
                })
            })
        }
    }

    type Boxes = PageBox;
    #[inline(always)]
    fn find_boxes(at: PagedRow, warp: Warp) -> PageBox {
        InPages::find_boxes(at, warp)
    }
    #[inline(always)]
    unsafe fn load_boxes(to: u32, map: u64, tile: Panels, of: PageBox, full: u32, lane: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { InPages::load_boxes(to, map, tile, of, full, lane) }
    }
}

/// A [`PagedRow`] whose page each lane of a warp has looked up: lane `i` the page of the tile's box `i`.
#[derive(Clone, Copy)]
pub struct FoundRow {
    at: PagedRow,
    page: Page,
}

/// A lane's page of a [`FoundRow`].
#[derive(Clone, Copy)]
pub struct Page(u32);

impl PagedRow {
    /// Looks up, in lane `i`, the page of box `i` of the tile that begins with this row.
    #[inline(always)]
    pub fn find(&self, warp: Warp) -> Page {
        Page(page(&self.cache, self.sequence, self.row + warp.lane() * self.boxes.rows()))
    }

    /// This row, with the page that [`PagedRow::find`] returned for it.
    #[inline(always)]
    pub fn within(self, page: Page) -> FoundRow {
        FoundRow { at: self, page }
    }
}

/// The map kind of [`PagedMap`], as [`InPages`], for a warp that looks up pages long before it copies them.
/// Tiles of at most 64 rows begin with column `FIRST`, which is the first column of a panel.
#[derive(Clone, Copy)]
pub struct InFoundPages<const FIRST: u32>;

// SAFETY: lane `i` copies box `i` of each panel. A box has at least 8 rows, so the boxes of eight lanes cover
// a tile of 64 rows, and the panels cover the tile.
unsafe impl<const FIRST: u32> MapKind for InFoundPages<FIRST> {
    type Data = PagedMap;
    type At = FoundRow;
    type Wide = Self;
    #[inline(always)]
    fn encoded(data: &PagedMap) -> &TensorMap {
        &data.map
    }
    /// The lane's page stays that of the first tile.
    #[inline(always)]
    fn down(at: FoundRow, rows: u32) -> FoundRow {
        FoundRow { at: InPages::down(at.at, rows), ..at }
    }
    const PRODUCERS: u32 = 8;
    #[inline(always)]
    fn has_some(found: &FoundRow, rows: u32, lane: u32) -> bool {
        lane * found.at.boxes.rows() < rows
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, found: FoundRow, full: u32, lane: u32) {
        let first = lane * found.at.boxes.rows();
        // SAFETY: the caller keeps the preconditions.
        unsafe { found.at.copy_box::<FIRST>(found.page.0, first, (to, map, tile, full)) }
    }

    type Boxes = FoundRow;
    #[inline(always)]
    fn find_boxes(at: FoundRow, _: Warp) -> FoundRow {
        at
    }
    #[inline(always)]
    unsafe fn load_boxes(to: u32, map: u64, tile: Panels, found: FoundRow, full: u32, lane: u32) {
        if Self::has_some(&found, tile.rows(), lane) {
            // SAFETY: the caller keeps the preconditions, and the tile has this box.
            unsafe { Self::load(to, map, tile, found, full, lane) }
        }
    }
}

/// The map kind of a [`PagedMap`] that describes rows of all sequences in one tensor, as a [`RaggedMap`]
/// does. A kernel on a cache reads values through it that another kernel has laid there.
#[derive(Clone, Copy)]
pub struct OutsidePages;

// SAFETY: the copies are those of `RaggedMap`.
unsafe impl MapKind for OutsidePages {
    type Data = PagedMap;
    type At = RaggedRow;
    type Wide = Self;
    #[inline(always)]
    fn encoded(data: &PagedMap) -> &TensorMap {
        &data.map
    }
    #[inline(always)]
    fn down(at: RaggedRow, rows: u32) -> RaggedRow {
        RaggedMap::down(at, rows)
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, at: RaggedRow, full: u32, producer: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { RaggedMap::load(to, map, tile, at, full, producer) }
    }

    type Boxes = RaggedRow;
    #[inline(always)]
    fn find_boxes(at: RaggedRow, _: Warp) -> RaggedRow {
        at
    }
    #[inline(always)]
    unsafe fn load_boxes(to: u32, map: u64, tile: Panels, at: RaggedRow, full: u32, lane: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { RaggedMap::load_boxes(to, map, tile, at, full, lane) }
    }
}
