//! Tiles of any number of rows of one sequence's cache, wherever its pages lie: what a block copies.
use crate::table::{chunk_in, page};
use core::marker::PhantomData;
use spec::{Cache, Element};
use tile::{Crew, SharedTile, TileSource, TileWalk, Walk, layout};

/// Keys or values of one head of a sequence in a cache: rows of up to `C` base tiles of `E`, in pages of any
/// size.
#[derive(Clone, Copy)]
pub struct CacheRows<'p, E, const C: usize> {
    cache: &'p Cache,
    /// The first of all keys, or of all values.
    base: u64,
    sequence: u32,
    /// First chunk of the head in a row.
    head: u32,
    rows: u32,
    element: PhantomData<E>,
}

impl<'p, E: Element, const C: usize> CacheRows<'p, E, C> {
    /// The first `rows` keys, and their values, of head `head`.
    #[inline(always)]
    pub fn of(cache: &'p Cache, sequence: u32, head: u32, rows: u32) -> [Self; 2] {
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

    /// The page of row `row`, if there is such a row.
    #[inline(always)]
    fn page(&self, row: u32) -> u32 {
        if row < self.rows { page(self.cache, self.sequence, row) } else { 0 }
    }
}

impl<'p, E: Element, const C: usize> TileSource<E, C> for CacheRows<'p, E, C> {
    type Walk<const R: usize, W: Crew> = PageWalk<'p, E, R, C, W>;

    #[inline(always)]
    fn walk<const R: usize, W: Crew>(self, from: u32, crew: &W) -> PageWalk<'p, E, R, C, W> {
        let first = from * SharedTile::<E, R, C>::ROWS;
        let page = self.page(first + PageWalk::<E, R, C, W>::looks_up(crew));
        PageWalk { source: self, first, page, crew: PhantomData }
    }
}

/// A walk of crew `W` through the tiles of `R` base-tile rows of a sequence's cache.
///
/// Each lane looks up one of the rows that its warp copies, a tile ahead, and hands it out by a shuffle: a
/// row is 32 bits until it is copied. Lookups by every thread for each of its rows would be several times as
/// many instructions, and pointers twice the registers.
pub struct PageWalk<'p, E, const R: usize, const C: usize, W> {
    source: CacheRows<'p, E, C>,
    /// First row of the next tile.
    first: u32,
    /// The page of the row that this lane looks up. What the table has there: it is clamped when it has come.
    page: u32,
    crew: PhantomData<W>,
}

impl<E: Element, const R: usize, const C: usize, W: Crew> PageWalk<'_, E, R, C, W> {
    /// Rows that a warp copies at once.
    const AT_ONCE: u32 = {
        let rows = 32 / Walk::<E, R, C, W>::ACROSS;
        assert!(
            rows * Walk::<E, R, C, W>::GROUPS <= 32,
            "a warp copies more rows of a tile than it has lanes"
        );
        rows
    };

    /// The row of a tile that this lane looks up. Some lanes may have one of the tile behind.
    #[inline(always)]
    fn looks_up(crew: &W) -> u32 {
        let lane = crew.member() % 32;
        let warp = crew.member() / 32;
        lane / Self::AT_ONCE * Walk::<E, R, C, W>::GROUP + warp * Self::AT_ONCE + lane % Self::AT_ONCE
    }
}

// SAFETY: chunks of rows of pages that exist, whatever the table says, and of columns that do; 16-byte
// aligned, as `Cache` promises.
unsafe impl<E: Element, const R: usize, const C: usize, W: Crew> TileWalk<E, R, C, W>
    for PageWalk<'_, E, R, C, W>
{
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, crew: &W, copy: impl Fn(u32, u32, u64, bool)) {
        let CacheRows { cache, base, head, rows: end, .. } = self.source;
        let rows = SharedTile::<E, R, C>::ROWS;
        let (row, chunk) = Walk::<E, R, C, W>::place(crew);
        let across = Walk::<E, R, C, W>::ACROSS;
        let found = chunk_in(cache, self.page, self.first + Self::looks_up(crew)) + head;
        for i in (0..Walk::<E, R, C, W>::GROUPS).rev() {
            let first = i * Walk::<E, R, C, W>::GROUP;
            let at = crew.warp().shuffle(found, i * Self::AT_ONCE + row % Self::AT_ONCE) + chunk;
            // Known at compile time unless the threads do not divide the tile's rows.
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
        self.first = self.first.wrapping_sub(rows);
        self.page = self.source.page(self.first.wrapping_add(Self::looks_up(crew)));
    }
}
