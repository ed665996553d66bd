//! One warp's walk through a sequence in a KV cache, in tiles of 16 rows. Pages may have any size.
use crate::table::chunk;
use core::marker::PhantomData;
use cuda_std::math;
use spec::{Cache, Element};
use tile::copy::{CpAsync, Walk};
use tile::shared::TileSlot;
use tile::{Steps, Warp, layout};

/// One warp's share of a sequence's first `rows` rows: from tile `first` on, every `stride`-th tile of 16
/// rows.
#[derive(Clone, Copy)]
pub struct Strided {
    /// Index of the sequence.
    pub sequence: u32,
    /// Index of the share's first tile.
    pub first: u32,
    /// The distance from one tile of the share to the next, in tiles.
    pub stride: u32,
    /// Number of rows of the sequence.
    pub rows: u32,
}

impl Strided {
    /// The first row of the share's tile `i`. The result is at or past the last row if the tile does not
    /// exist.
    #[inline(always)]
    pub(crate) fn row(&self, i: u32) -> u32 {
        (self.first + i * self.stride) * 16
    }

    /// The first rows of the share's tiles.
    #[inline(always)]
    pub fn tiles(&self) -> Steps {
        Steps { at: self.first * 16, step: self.stride * 16, end: self.rows }
    }
}

/// Finds the rows of a tile in the cache. `new` and `seek` do not treat the first tile separately: LLVM would
/// otherwise peel it off the loop that starts all stages.
pub trait Source: Sized {
    /// Creates a source before its first tile.
    fn new(cache: &Cache, share: &Strided, warp: Warp) -> Self;
    /// Moves on to tile `i`. Calls must name the tiles in ascending order.
    fn seek(&mut self, cache: &Cache, share: &Strided, i: u32, warp: Warp);
    /// The index of the first chunk of row `row + mine` of the tile. `mine` differs from lane to lane; `row`
    /// is a constant.
    fn chunk(&self, cache: &Cache, row: u32, mine: u32, warp: Warp) -> u32;
}

/// Source for pages of a multiple of 16 rows: each lane holds the start of one of the next 32 tiles.
#[derive(Clone, Copy)]
pub struct PagedTiles {
    these: u32,
    next: u32,
    tile: u32,
}

impl PagedTiles {
    #[inline(always)]
    fn look(cache: &Cache, share: &Strided, i: u32) -> u32 {
        let row = share.row(i);
        if row < share.rows { chunk(cache, share.sequence, row) } else { 0 }
    }
}

impl Source for PagedTiles {
    #[inline(always)]
    fn new(cache: &Cache, share: &Strided, warp: Warp) -> Self {
        PagedTiles { these: 0, next: Self::look(cache, share, warp.lane()), tile: 0 }
    }
    #[inline(always)]
    fn seek(&mut self, cache: &Cache, share: &Strided, i: u32, warp: Warp) {
        // The entries are loaded before the warp needs them, but after the first copies.
        if i % 32 == 16 {
            self.next = Self::look(cache, share, i + 16 + warp.lane());
        }
        if i.is_multiple_of(32) {
            self.these = self.next;
        }
        self.tile = warp.shuffle(self.these, i % 32);
    }
    #[inline(always)]
    fn chunk(&self, cache: &Cache, row: u32, mine: u32, _: Warp) -> u32 {
        self.tile + mine * cache.row_chunks + row * cache.row_chunks
    }
}

/// Source for pages of any size: each lane holds the start of one row of this tile or the next.
#[derive(Clone, Copy)]
pub struct PagedRows {
    these: u32,
    next: u32,
    half: u32,
}

impl PagedRows {
    #[inline(always)]
    fn look(cache: &Cache, share: &Strided, i: u32, warp: Warp) -> u32 {
        let row = share.row(i + warp.lane() / 16) + warp.lane() % 16;
        if row < share.rows { chunk(cache, share.sequence, row) } else { 0 }
    }
}

impl Source for PagedRows {
    #[inline(always)]
    fn new(cache: &Cache, share: &Strided, warp: Warp) -> Self {
        PagedRows { these: 0, next: Self::look(cache, share, 0, warp), half: 0 }
    }
    #[inline(always)]
    fn seek(&mut self, cache: &Cache, share: &Strided, i: u32, warp: Warp) {
        if i.is_multiple_of(2) {
            self.these = self.next;
            self.next = Self::look(cache, share, i + 2, warp);
        }
        self.half = i % 2 * 16;
    }
    #[inline(always)]
    fn chunk(&self, _: &Cache, row: u32, mine: u32, warp: Warp) -> u32 {
        warp.shuffle(self.these, self.half + row + mine)
    }
}

/// The largest number of panels per row.
const PANELS: usize = 8;

/// A warp's walk through its share of one head's keys and values. A row has `C` base tiles of `E`.
pub struct CacheWalk<'p, E, S, const C: usize> {
    cache: &'p Cache,
    share: Strided,
    source: S,
    /// The address of this lane's chunk in the head's first key, and in the head's first value.
    bases: [u64; 2],
    /// For each panel, the number of rows whose chunk for this lane exists: one comparison checks row and
    /// column.
    ends: [u32; PANELS],
    /// Index of the next tile.
    i: u32,
    warp: Warp,
    element: PhantomData<E>,
}

impl<'p, E: Element, S: Source, const C: usize> CacheWalk<'p, E, S, C> {
    /// Creates a walk before the first tile of head `head`.
    #[inline(always)]
    pub fn new(cache: &'p Cache, share: Strided, head: u32, warp: Warp) -> Self {
        const { assert!(Walk::<E, 1, C, Warp>::PANELS as usize <= PANELS, "rows are too wide") }
        let (_, chunk) = Walk::<E, 1, C, Warp>::place(&warp);
        let column = (head * cache.head_chunks + chunk) as u64 * layout::CHUNK as u64;
        CacheWalk {
            source: S::new(cache, &share, warp),
            bases: [cache.keys + column, cache.values + column],
            ends: core::array::from_fn(|panel| {
                let column = panel as u32 * Walk::<E, 1, C, Warp>::ACROSS + chunk;
                // The value is hidden from LLVM, which would otherwise make both comparisons at each copy.
                math::opaque(if column < cache.chunks { share.rows } else { 0 })
            }),
            i: 0,
            element: PhantomData,
            cache,
            share,
            warp,
        }
    }

    /// Starts the copies of the next tile's keys and values, if the tile exists. Rows past the end and
    /// columns that do not exist become zero.
    #[inline(always)]
    pub fn copy(&mut self, slots: [&TileSlot<E, 1, C, CpAsync<Warp>>; 2]) {
        self.copy_and(slots, |_| ())
    }

    /// Like [`CacheWalk::copy`]. If the tile exists, also calls `beside` with the index of the tile.
    #[inline(always)]
    pub fn copy_and(&mut self, slots: [&TileSlot<E, 1, C, CpAsync<Warp>>; 2], beside: impl FnOnce(u32)) {
        let first = self.share.row(self.i);
        if first < self.share.rows {
            self.source.seek(self.cache, &self.share, self.i, self.warp);
            beside(self.i);
            let (row, _) = Walk::<E, 1, C, Warp>::place(&self.warp);
            for i in 0..Walk::<E, 1, C, Warp>::GROUPS {
                let group = i * Walk::<E, 1, C, Warp>::GROUP;
                let at = self.source.chunk(self.cache, group, row, self.warp) as u64 * layout::CHUNK as u64;
                for which in 0..2 {
                    let from = self.bases[which] + at;
                    for panel in 0..Walk::<E, 1, C, Warp>::PANELS {
                        let from = from + (panel * Walk::<E, 1, C, Warp>::ACROSS * layout::CHUNK) as u64;
                        let present = first + group + row < self.ends[panel as usize];
                        // SAFETY: where `present`, the chunk exists in a page that `chunk` has clamped; it is
                        // 16-byte aligned, as `Cache` promises; and a warp's groups divide 16 rows.
                        unsafe { slots[which].copy_chunk(&self.warp, group, panel, from, present) }
                    }
                }
            }
        }
        self.i += 1;
    }
}
