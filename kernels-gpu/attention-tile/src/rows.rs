//! A block's walk through the tiles of a sequence in a KV cache. Tiles may have any number of rows, and pages
//! any size.
use crate::table::{chunk_in, page};
use core::marker::PhantomData;
use spec::{Cache, Element};
use tile::copy::{TileSource, TileWalk, Walk};
use tile::group::ThreadGroup;
use tile::layout;
use tile::shared::SharedTile;

/// Keys (or values) of one head of a sequence in a KV cache. A row has up to `C` base tiles of `E`, and pages
/// may have any size.
#[derive(Clone, Copy)]
pub struct CacheRows<'p, E, const C: usize> {
    pub(crate) cache: &'p Cache,
    /// Address of the cache's first key, or of its first value.
    base: u64,
    sequence: u32,
    /// Index of the head's first chunk in a row.
    pub(crate) head: u32,
    pub(crate) rows: u32,
    element: PhantomData<E>,
}

impl<'p, E: Element, const C: usize> CacheRows<'p, E, C> {
    /// The first `rows` keys of head `head`, and the values of these keys.
    #[inline(always)]
    pub fn new(cache: &'p Cache, sequence: u32, head: u32, rows: u32) -> [Self; 2] {
        let head = head * cache.head_chunks;
        [cache.keys, cache.values].map(|base| CacheRows {
            cache,
            base,
            sequence,
            head,
            rows,
            element: PhantomData,
        })
    }

    /// These rows, as rows of up to `W` base tiles.
    #[inline(always)]
    pub fn retyped<const W: usize>(self) -> CacheRows<'p, E, W> {
        let CacheRows { cache, base, sequence, head, rows, .. } = self;
        CacheRows { cache, base, sequence, head, rows, element: PhantomData }
    }

    /// The block table's entry for the page of row `row`, if the row exists.
    #[inline(always)]
    pub(crate) fn page(&self, row: u32) -> u32 {
        if row < self.rows { page(self.cache, self.sequence, row) } else { 0 }
    }
}

impl<'p, E: Element, const C: usize> TileSource<E, C> for CacheRows<'p, E, C> {
    type Walk<const R: usize, W: ThreadGroup> = PageWalk<'p, E, R, C, W>;

    #[inline(always)]
    fn walk<const R: usize, W: ThreadGroup>(self, from: u32, group: &W) -> PageWalk<'p, E, R, C, W> {
        PageWalk::new(self, from, Down, group)
    }
}

/// The order of a walk's tiles.
pub trait Order: Copy {
    /// The first row of the next tile, if `first` is the first row of this tile of `rows` rows.
    fn next(self, first: u32, rows: u32) -> u32;
}

/// The walk goes downwards, tile after tile, and ends with tile 0.
#[derive(Clone, Copy)]
pub struct Down;
impl Order for Down {
    #[inline(always)]
    fn next(self, first: u32, rows: u32) -> u32 {
        first.wrapping_sub(rows)
    }
}

/// The walk goes upwards, by this number of rows from tile to tile.
#[derive(Clone, Copy)]
pub struct Up(pub u32);
impl Order for Up {
    #[inline(always)]
    fn next(self, first: u32, rows: u32) -> u32 {
        first.wrapping_add(self.0.wrapping_mul(rows))
    }
}

/// The walk of thread group `W` through a sequence's cache, in tiles of `R` base tiles of rows.
///
/// While the group copies one tile, each lane looks up one row of the next tile, and a shuffle shares the
/// row's 32-bit index. If each thread looked up all of its rows, the walk would execute several times as many
/// instructions. Pointers instead of indices would need twice as many registers.
pub struct PageWalk<'p, E, const R: usize, const C: usize, W, O = Down> {
    source: CacheRows<'p, E, C>,
    order: O,
    /// The first row of the next tile.
    first: u32,
    /// The block table's entry for the row that this lane looks up. The lane clamps the entry when it uses
    /// the entry, after the load has arrived.
    page: u32,
    group: PhantomData<W>,
}

impl<'p, E: Element, const R: usize, const C: usize, W: ThreadGroup, O: Order> PageWalk<'p, E, R, C, W, O> {
    /// Starts the walk at row `from`.
    #[inline(always)]
    pub fn new(source: CacheRows<'p, E, C>, from: u32, order: O, group: &W) -> Self {
        let first = from * SharedTile::<E, R, C>::ROWS;
        let page = source.page(first + Self::looks_up(group));
        PageWalk { source, order, first, page, group: PhantomData }
    }

    /// Number of rows that a warp copies at once.
    pub(crate) const AT_ONCE: u32 = {
        let rows = 32 / Walk::<E, R, C, W>::ACROSS;
        assert!(
            rows * Walk::<E, R, C, W>::GROUPS <= 32,
            "a warp copies more rows of a tile than it has lanes"
        );
        rows
    };

    /// The row of a tile that this lane looks up. Some lanes may look up a row of the next tile instead.
    #[inline(always)]
    pub(crate) fn looks_up(group: &W) -> u32 {
        let lane = group.member() % 32;
        let warp = group.member() / 32;
        lane / Self::AT_ONCE * Walk::<E, R, C, W>::GROUP + warp * Self::AT_ONCE + lane % Self::AT_ONCE
    }
}

// SAFETY: the rows and columns that this walk reads exist, whatever the table contains. Chunks are 16-byte
// aligned, as `Cache` promises.
unsafe impl<E: Element, const R: usize, const C: usize, W: ThreadGroup, O: Order> TileWalk<E, R, C, W>
    for PageWalk<'_, E, R, C, W, O>
{
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, group: &W, copy: impl Fn(u32, u32, u64, bool)) {
        let CacheRows { cache, base, head, rows: end, .. } = self.source;
        let rows = SharedTile::<E, R, C>::ROWS;
        let (row, chunk) = Walk::<E, R, C, W>::place(group);
        let across = Walk::<E, R, C, W>::ACROSS;
        let found = chunk_in(cache, self.page, self.first + Self::looks_up(group)) + head;
        for i in (0..Walk::<E, R, C, W>::GROUPS).rev() {
            let first = i * Walk::<E, R, C, W>::GROUP;
            let at = group.warp().shuffle(found, i * Self::AT_ONCE + row % Self::AT_ONCE) + chunk;
            // If the number of threads divides the tile's rows, the compiler knows this condition and removes
            // the branch.
            if first + Walk::<E, R, C, W>::GROUP <= rows || first + row < rows {
                let from = base + at as u64 * layout::CHUNK as u64;
                for panel in 0..Walk::<E, R, C, W>::PANELS {
                    let column = panel * across;
                    let exists = !EDGE || self.first + first + row < end;
                    let from = from + (column * layout::CHUNK) as u64;
                    copy(first, panel, from, column + chunk < cache.chunks && exists);
                }
            }
        }
        self.first = self.order.next(self.first, rows);
        self.page = self.source.page(self.first.wrapping_add(Self::looks_up(group)));
    }

    #[inline(always)]
    fn seek(&mut self, tile: u32, group: &W) {
        *self = PageWalk::new(self.source, tile, self.order, group);
    }
}
