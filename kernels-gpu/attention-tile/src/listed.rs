//! Rows of a KV cache that a list of slots names. No other file reads these lists.
use crate::rows::{PageWalk, Up};
use core::marker::PhantomData;
use spec::{Cache, Element, Integers};
use tile::Warp;
use tile::copy::{TileWalk, Walk};
use tile::global::GlobalInts;
use tile::group::ThreadGroup;
use tile::layout;
use tile::shared::SharedTile;

/// The slot, and the first chunk, of a row that does not exist. A row of a latent cache has two chunks or
/// more, so that none begins here.
pub(crate) const NONE: u32 = u32::MAX;

/// The keys of one head that a list names. The host has not checked the slots: a slot that is negative or
/// beyond all pages names no row.
#[derive(Clone, Copy)]
pub struct ListedRows<'p> {
    pub(crate) cache: &'p Cache,
    slots: &'p Integers,
    /// Index of the list's first slot.
    first: u32,
    /// Number of slots in the list.
    count: u32,
    /// Index of the head's first chunk in a row.
    head: u32,
}

impl<'p> ListedRows<'p> {
    /// List `list` of the lists `slots`, which have `count` slots each. Rows are those of head `head`.
    #[inline(always)]
    pub fn new(cache: &'p Cache, slots: &'p Integers, [list, count]: [u32; 2], head: u32) -> Self {
        ListedRows { cache, slots, first: list * count, count, head: head * cache.head_chunks }
    }

    /// Loads the slots of this lane's two rows of the 16 rows from `first` on.
    #[inline(always)]
    pub fn load_lane(&self, first: u32, warp: Warp) -> [u32; 2] {
        [0, 8].map(|below| self.load(first + warp.lane() / 4 + below))
    }

    /// Loads slot `row` of the list.
    #[inline(always)]
    fn load(&self, row: u32) -> u32 {
        if row < self.count { GlobalInts::new(self.slots).get(self.first + row) as u32 } else { NONE }
    }

    /// Whether a slot names a row. A negative slot becomes a large unsigned number: there are fewer than 2^31
    /// rows.
    #[inline(always)]
    pub fn names(&self, slot: u32) -> bool {
        slot < self.cache.pages * self.cache.page.get()
    }

    /// The index of the first chunk of the row that a slot names.
    #[inline(always)]
    pub(crate) fn chunk(&self, slot: u32) -> u32 {
        let (page, row) = self.cache.page.div_rem(slot);
        let chunk = page * self.cache.page_chunks + row * self.cache.row_chunks + self.head;
        if self.names(slot) { chunk } else { NONE }
    }
}

/// The slots of a tile of 64 rows. Lane `i` of each warp has those of rows `i` and `i + 32`.
#[derive(Clone, Copy)]
pub struct FoundSlots(pub(crate) [u32; 2]);

impl<'p> ListedRows<'p> {
    /// Looks up the slots of the 64 rows from `first` on.
    #[inline(always)]
    pub fn find(&self, first: u32, warp: Warp) -> FoundSlots {
        FoundSlots([0, 32].map(|below| self.load(first + warp.lane() + below)))
    }

    /// Which of these slots name rows: bit `i` of word `w` stands for row `32 * w + i`.
    #[inline(always)]
    pub fn named(&self, FoundSlots(slots): FoundSlots, warp: Warp) -> [u32; 2] {
        slots.map(|slot| warp.ballot(self.names(slot)))
    }

    /// The tile with these slots.
    #[inline(always)]
    pub fn tile<const FIRST: u32>(self, slots: FoundSlots) -> ListedTile<'p, FIRST> {
        ListedTile { rows: self, slots }
    }
}

/// A tile of 64 rows of a list, whose slots a warp looks up long before it copies them. The tile begins with
/// column `FIRST`. Rows that do not exist become zero, as in [`ListedWalk`].
pub struct ListedTile<'p, const FIRST: u32> {
    rows: ListedRows<'p>,
    slots: FoundSlots,
}

// SAFETY: a chunk exists if its slot names a row of a page, and its column is one of the row's. Chunks are
// 16-byte aligned, as `Cache` promises.
unsafe impl<E: Element, const C: usize, const FIRST: u32, W: ThreadGroup> TileWalk<E, 4, C, W>
    for ListedTile<'_, FIRST>
{
    /// Takes the tile. There is no next tile before a `seek`.
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, group: &W, copy: impl Fn(u32, u32, u64, bool)) {
        const { assert!(EDGE, "a list may name no row at any place") }
        const { assert!(32u32.is_multiple_of(Walk::<E, 4, C, W>::GROUP), "a lane has one row of each 32") }
        let cache = self.rows.cache;
        let first_chunk = const { FIRST * E::BYTES as u32 / layout::CHUNK };
        let (row, chunk) = Walk::<E, 4, C, W>::place(group);
        let found = self.slots.0.map(|slot| self.rows.chunk(slot));
        for i in 0..Walk::<E, 4, C, W>::GROUPS {
            let first = i * Walk::<E, 4, C, W>::GROUP;
            let at = group.warp().shuffle(found[first as usize / 32], first % 32 + row);
            let from = cache.keys + at.wrapping_add(first_chunk + chunk) as u64 * layout::CHUNK as u64;
            for panel in 0..Walk::<E, 4, C, W>::PANELS {
                let column = panel * Walk::<E, 4, C, W>::ACROSS;
                let from = from + (column * layout::CHUNK) as u64;
                copy(first, panel, from, first_chunk + column + chunk < cache.chunks && at != NONE);
            }
        }
    }

    #[inline(always)]
    fn seek(&mut self, tile: u32, group: &W) {
        self.slots = self.rows.find(tile * 64, group.warp());
    }
}

/// The walk of thread group `W` through the rows of a list, in tiles of `R` base tiles of rows, in the order
/// [`Up`]. Lanes look up rows as in [`PageWalk`]. Rows that do not exist become zero: the probability of
/// their keys is 0, whose product with a stale infinity would be NaN.
pub struct ListedWalk<'p, E, const R: usize, const C: usize, W> {
    rows: ListedRows<'p>,
    /// Number of rows from tile to tile.
    step: u32,
    /// The first row of the next tile.
    first: u32,
    /// The slot of the row that this lane looks up.
    slot: u32,
    group: PhantomData<(E, W)>,
}

/// Where lanes look up rows.
type Lanes<'p, E, const R: usize, const C: usize, W> = PageWalk<'p, E, R, C, W, Up>;

impl<'p, E: Element, const R: usize, const C: usize, W: ThreadGroup> ListedWalk<'p, E, R, C, W> {
    /// Starts the walk at tile `from`. It takes every tile number `step`.
    #[inline(always)]
    pub fn new(rows: ListedRows<'p>, from: u32, Up(step): Up, group: &W) -> Self {
        let (tile, step) = (SharedTile::<E, R, C>::ROWS, step.wrapping_mul(SharedTile::<E, R, C>::ROWS));
        let slot = rows.load(from * tile + Lanes::<E, R, C, W>::looks_up(group));
        ListedWalk { rows, step, first: from * tile, slot, group: PhantomData }
    }
}

// SAFETY: a chunk exists if its slot names a row of a page, and its column is one of the row's. Chunks are
// 16-byte aligned, as `Cache` promises.
unsafe impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> TileWalk<E, R, C, W>
    for ListedWalk<'_, E, R, C, W>
{
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, group: &W, copy: impl Fn(u32, u32, u64, bool)) {
        const { assert!(EDGE, "a list may name no row at any place") }
        let cache = self.rows.cache;
        let rows = SharedTile::<E, R, C>::ROWS;
        let (row, chunk) = Walk::<E, R, C, W>::place(group);
        let found = self.rows.chunk(self.slot);
        for i in (0..Walk::<E, R, C, W>::GROUPS).rev() {
            let first = i * Walk::<E, R, C, W>::GROUP;
            let at_once = Lanes::<E, R, C, W>::AT_ONCE;
            let at = group.warp().shuffle(found, i * at_once + row % at_once);
            if first + Walk::<E, R, C, W>::GROUP <= rows || first + row < rows {
                let from = cache.keys + at.wrapping_add(chunk) as u64 * layout::CHUNK as u64;
                for panel in 0..Walk::<E, R, C, W>::PANELS {
                    let column = panel * Walk::<E, R, C, W>::ACROSS;
                    let from = from + (column * layout::CHUNK) as u64;
                    copy(first, panel, from, column + chunk < cache.chunks && at != NONE);
                }
            }
        }
        self.first = self.first.wrapping_add(self.step);
        self.slot = self.rows.load(self.first.wrapping_add(Lanes::<E, R, C, W>::looks_up(group)));
    }

    #[inline(always)]
    fn seek(&mut self, tile: u32, group: &W) {
        self.first = tile * SharedTile::<E, R, C>::ROWS;
        self.slot = self.rows.load(self.first + Lanes::<E, R, C, W>::looks_up(group));
    }
}
