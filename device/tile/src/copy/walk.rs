//! Walks through tiles of global memory. A walk decides which thread copies which chunk.
use crate::global::GlobalRows;
use crate::group::ThreadGroup;
use crate::layout;
use crate::shared::SharedTile;
use contract::Element;
use core::marker::PhantomData;

/// Rows in global memory that a group copies tile by tile. Other crates may add sources and their walks.
pub trait TileSource<E, const C: usize>: Copy {
    /// A walk of group `W` through the tiles of `R` base tiles of rows, from a given tile down to tile 0.
    type Walk<const R: usize, W: ThreadGroup>: TileWalk<E, R, C, W>;

    /// Starts the walk at tile `from`. The last rows of this tile may be missing.
    fn walk<const R: usize, W: ThreadGroup>(self, from: u32, group: &W) -> Self::Walk<R, W>;
}

/// A walk through tiles. Each thread computes its own share of the copies.
///
/// # Safety
/// - `step` calls `copy` with addresses of 16-byte chunks, which are multiples of 16. Each chunk that exists
///   may be read.
/// - The panel is below [`Walk::PANELS`], the first row is a multiple of [`Walk::GROUP`], and the thread's
///   row in that group of rows ([`Walk::place`]) is in the tile.
pub unsafe trait TileWalk<E, const R: usize, const C: usize, W> {
    /// For each chunk of this thread in the next tile, calls
    /// `copy(first row of the row group in the tile, panel, global address, whether the chunk exists)`. Rows
    /// may be missing only if `EDGE` is true.
    fn step<const EDGE: bool>(&mut self, group: &W, copy: impl Fn(u32, u32, u64, bool));

    /// Goes to tile `tile`, which `step` then takes. Rows of this tile may be missing.
    fn seek(&mut self, tile: u32, group: &W);
}

impl<E: Element, const C: usize> TileSource<E, C> for GlobalRows<E, C> {
    type Walk<const R: usize, W: ThreadGroup> = Walk<E, R, C, W>;

    #[inline(always)]
    fn walk<const R: usize, W: ThreadGroup>(self, from: u32, group: &W) -> Walk<E, R, C, W> {
        Walk::down(self, from, group)
    }
}

/// A walk of group `W` through the tiles of `R` base tiles of rows of a tensor, from a given tile down to
/// tile 0.
///
/// All threads share the pointer, so that it stays in uniform registers. Each thread adds its own constant
/// 32-bit offset. One pointer per thread costs 16 more instructions per tile (docs/performance-log.md).
pub struct Walk<E, const R: usize, const C: usize, W> {
    /// Address of the next group of rows.
    at: u64,
    /// This thread's byte offset from `at`.
    mine: u32,
    /// This thread's row in the first row group of the next tile.
    row: u32,
    /// The bounds for this thread's chunks, one for each panel.
    source: GlobalRows<E, C>,
    group: PhantomData<W>,
}

impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> Walk<E, R, C, W> {
    /// Number of chunks of a row that neighbouring threads copy together, which are the chunks of one panel.
    pub const ACROSS: u32 = layout::panel_chunks(SharedTile::<E, R, C>::ROW_CHUNKS);
    /// Number of panels per row.
    pub const PANELS: u32 = SharedTile::<E, R, C>::ROW_CHUNKS / Self::ACROSS;
    /// Number of rows that the group copies at once.
    pub const GROUP: u32 = {
        assert!(W::THREADS.is_multiple_of(Self::ACROSS), "the threads must make up whole rows of a panel");
        // A row has less than 2^27 bytes, so a 32-bit number can count the bytes of 32 rows.
        assert!(W::THREADS / Self::ACROSS <= 32, "more than 32 rows at a step overflow a 32-bit offset");
        W::THREADS / Self::ACROSS
    };
    /// Number of row groups per tile. The last group may reach past the tile's end.
    pub const GROUPS: u32 = SharedTile::<E, R, C>::ROWS.div_ceil(Self::GROUP);

    /// Starts a walk at tile `from`. The last rows of this tile may be missing.
    #[inline(always)]
    pub fn down(source: GlobalRows<E, C>, from: u32, group: &W) -> Self {
        let first = from * SharedTile::<E, R, C>::ROWS;
        let last = first + const { (Self::GROUPS - 1) * Self::GROUP };
        let at = source.base.wrapping_add(last as u64 * source.row_bytes as u64);
        let (row, chunk) = Self::place(group);
        let mine = row * source.row_bytes + chunk * layout::CHUNK;
        Walk { at, mine, row: first + row, source, group: PhantomData }
    }

    /// This thread's row and chunk in a group of rows.
    #[inline(always)]
    pub fn place(group: &W) -> (u32, u32) {
        (group.member() / Self::ACROSS, group.member() % Self::ACROSS)
    }

    /// Calls `f(row, chunk)` for each of this thread's chunks of one tile.
    #[inline(always)]
    pub(crate) fn each_chunk(group: &W, f: impl Fn(u32, u32)) {
        let (row, chunk) = Self::place(group);
        for i in 0..Self::GROUPS {
            for panel in 0..Self::PANELS {
                if i * Self::GROUP + row < SharedTile::<E, R, C>::ROWS {
                    f(i * Self::GROUP + row, panel * Self::ACROSS + chunk);
                }
            }
        }
    }
}

// SAFETY: the rows and columns of the chunks exist, and chunks are 16-byte aligned, as `GlobalRows` promises.
unsafe impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> TileWalk<E, R, C, W>
    for Walk<E, R, C, W>
{
    /// The walk takes the row groups in descending order. In ascending order, LLVM would keep one offset per
    /// row group and spill (docs/performance-log.md).
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, group: &W, copy: impl Fn(u32, u32, u64, bool)) {
        let rows = SharedTile::<E, R, C>::ROWS;
        let (row, chunk) = Self::place(group);
        let mut at = self.at.wrapping_add(self.mine as u64);
        for i in (0..Self::GROUPS).rev() {
            let first = i * Self::GROUP;
            // The compiler knows this condition unless the threads do not divide the tile's rows.
            let in_tile = first + Self::GROUP <= rows || first + row < rows;
            if in_tile {
                for panel in 0..Self::PANELS {
                    let column = panel * Self::ACROSS;
                    let exists = !EDGE || self.row + first < self.source.rows;
                    let at = at.wrapping_add((column * layout::CHUNK) as u64);
                    copy(first, panel, at, column + chunk < self.source.chunks && exists);
                }
            }
            at = at.wrapping_sub(Self::GROUP as u64 * self.source.row_bytes as u64);
        }
        self.at = self.at.wrapping_sub(rows as u64 * self.source.row_bytes as u64);
        self.row = self.row.wrapping_sub(rows);
    }

    #[inline(always)]
    fn seek(&mut self, tile: u32, group: &W) {
        *self = Walk::down(self.source, tile, group);
    }
}
