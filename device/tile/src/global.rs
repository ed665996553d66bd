//! Rows in global memory, and walks over them.
use crate::{Crew, SharedTile, layout};
use contract::{Element, Integers, Tensor, Vector};
use core::marker::PhantomData;
use cuda_std::memory::ld_global_nc_b32;

/// One head of a tensor: rows of up to `C` base tiles of `E`; base and stride are multiples of 16 bytes (the
/// host has checked).
#[derive(Clone, Copy)]
pub struct GlobalRows<E, const C: usize> {
    pub(crate) base: u64,
    pub(crate) row_bytes: u32,
    pub(crate) rows: u32,
    /// 16-byte chunks of a row that exist; the others read as zero and are not written.
    pub(crate) chunks: u32,
    element: PhantomData<E>,
}

impl<E: Element, const C: usize> GlobalRows<E, C> {
    /// Head `head` of batch `batch`.
    #[inline(always)]
    pub fn of(tensor: &Tensor, batch: u32, head: u32) -> Self {
        let offset = (batch as u64)
            .wrapping_mul(tensor.batch_bytes)
            .wrapping_add((head as u64).wrapping_mul(tensor.head_bytes));
        GlobalRows {
            base: tensor.base.wrapping_add(offset),
            row_bytes: tensor.row_bytes,
            rows: tensor.rows,
            chunks: tensor.chunks,
            element: PhantomData,
        }
    }

    /// The same rows, known to have the columns of `other`: one bound in a register instead of two.
    #[inline(always)]
    pub fn as_wide_as(self, other: &Self) -> Self {
        GlobalRows { chunks: other.chunks, ..self }
    }

    /// Rows `first..first + rows` of these, which they must be. Both are known before any row is touched: to
    /// whoever cuts them they are the last word.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        GlobalRows { base: self.base.wrapping_add(first as u64 * self.row_bytes as u64), rows, ..self }
    }

    /// How many there are.
    #[inline(always)]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// A word of a chunk of a row, of a tensor that nobody writes while the kernel runs; 0 where there is
    /// none.
    #[inline(always)]
    pub(crate) fn word(&self, row: u32, chunk: u32, word: u32) -> u32 {
        if row >= self.rows || chunk >= self.chunks {
            return 0;
        }
        let within = (chunk * layout::CHUNK + word * 4) as u64;
        let at = self.base.wrapping_add(row as u64 * self.row_bytes as u64).wrapping_add(within);
        // SAFETY: row and chunk exist, and base and stride are multiples of 16, as `GlobalRows` promises;
        // what kernels read through it they do not write.
        unsafe { ld_global_nc_b32(at) }
    }
}

/// One f32 for each row of a head.
#[derive(Clone, Copy)]
pub struct GlobalVec {
    /// 0 where it is not wanted.
    pub(crate) base: u64,
    pub(crate) rows: u32,
}

impl GlobalVec {
    /// Head `head` of batch `batch`, of `rows` rows.
    #[inline(always)]
    pub fn of(vector: &Vector, batch: u32, head: u32, rows: u32) -> Self {
        let offset = (batch as u64)
            .wrapping_mul(vector.batch_bytes)
            .wrapping_add((head as u64).wrapping_mul(vector.head_bytes));
        GlobalVec { base: if vector.base == 0 { 0 } else { vector.base.wrapping_add(offset) }, rows }
    }

    /// Rows `first..first + rows` of these, which they must be.
    #[inline(always)]
    pub fn part(self, first: u32, rows: u32) -> Self {
        GlobalVec { base: if self.base == 0 { 0 } else { self.base.wrapping_add(first as u64 * 4) }, rows }
    }
}

/// Integers that stand on the device, which nobody writes while the kernel runs.
#[derive(Clone, Copy)]
pub struct GlobalInts<'p>(&'p Integers);

impl<'p> GlobalInts<'p> {
    /// Those that a kernel is told of.
    #[inline(always)]
    pub fn of(integers: &'p Integers) -> Self {
        GlobalInts(integers)
    }

    /// Whether there are any.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0.count == 0
    }

    /// Integer `i`; 0 where there is none.
    #[inline(always)]
    pub fn get(self, i: u32) -> i32 {
        if i >= self.0.count {
            return 0;
        }
        // SAFETY: it exists, and the base is a multiple of 4, as `Integers` promises; kernels that read them
        // do not write them.
        unsafe { ld_global_nc_b32(self.0.base.wrapping_add(i as u64 * 4)) as i32 }
    }
}

/// Rows that are copied tile by tile: those of a tensor, or of whatever another crate has a walk for.
pub trait TileSource<E, const C: usize>: Copy {
    /// A walk of crew `W` through the tiles of `R` base-tile rows, from a given one down to the first.
    type Walk<const R: usize, W: Crew>: TileWalk<E, R, C, W>;

    /// Starts with tile `from`, of which rows past the end may be missing.
    fn walk<const R: usize, W: Crew>(self, from: u32, crew: &W) -> Self::Walk<R, W>;
}

/// A walk through tiles; each thread carries its share of the copies.
///
/// # Safety
/// - `step` hands out chunks of 16 bytes that may be read where they exist, at multiples of 16, of groups in
///   which the thread has a row of the tile ([`Walk::place`]).
pub unsafe trait TileWalk<E, const R: usize, const C: usize, W> {
    /// `copy(first row of the group in the tile, panel, global address, whether it exists)` for each of this
    /// thread's chunks of the next tile, of which with `EDGE` some rows may not exist.
    fn step<const EDGE: bool>(&mut self, crew: &W, copy: impl Fn(u32, u32, u64, bool));
}

impl<E: Element, const C: usize> TileSource<E, C> for GlobalRows<E, C> {
    type Walk<const R: usize, W: Crew> = Walk<E, R, C, W>;

    #[inline(always)]
    fn walk<const R: usize, W: Crew>(self, from: u32, crew: &W) -> Walk<E, R, C, W> {
        Walk::down(self, from, crew)
    }
}

/// A walk of crew `W` through the tiles of `R` base-tile rows of a tensor, from a given one down to the
/// first.
///
/// The pointer that walks is the whole crew's, so that it stays in uniform registers; a thread adds a
/// constant 32-bit offset. A pointer per thread costs 16 more instructions a block of keys
/// (docs/performance-log.md).
pub struct Walk<E, const R: usize, const C: usize, W> {
    /// The group of rows that is copied next.
    at: u64,
    /// This thread's byte offset from there.
    mine: u32,
    /// This thread's row of the next tile's first group.
    row: u32,
    /// Which of this thread's chunks, one a panel, exist.
    source: GlobalRows<E, C>,
    crew: PhantomData<W>,
}

impl<E: Element, const R: usize, const C: usize, W: Crew> Walk<E, R, C, W> {
    /// Chunks of a row that neighbouring threads copy together: a panel's.
    pub const ACROSS: u32 = layout::panel_chunks(SharedTile::<E, R, C>::ROW_CHUNKS);
    /// Panels of a row.
    pub const PANELS: u32 = SharedTile::<E, R, C>::ROW_CHUNKS / Self::ACROSS;
    /// Rows that the crew copies at once.
    pub const GROUP: u32 = {
        assert!(W::THREADS.is_multiple_of(Self::ACROSS), "the threads must make up whole rows of a panel");
        // A row has less than 2^27 bytes: 32 of them are counted in 32 bits.
        assert!(W::THREADS / Self::ACROSS <= 32, "more than 32 rows at a step overflow a 32-bit offset");
        W::THREADS / Self::ACROSS
    };
    /// How often it must, for a tile; the last time some rows may be past its end.
    pub const GROUPS: u32 = SharedTile::<E, R, C>::ROWS.div_ceil(Self::GROUP);

    /// Starts with tile `from`, of which rows past the end may be missing.
    #[inline(always)]
    pub fn down(source: GlobalRows<E, C>, from: u32, crew: &W) -> Self {
        let first = from * SharedTile::<E, R, C>::ROWS;
        let last = first + const { (Self::GROUPS - 1) * Self::GROUP };
        let at = source.base.wrapping_add(last as u64 * source.row_bytes as u64);
        let (row, chunk) = Self::place(crew);
        let mine = row * source.row_bytes + chunk * layout::CHUNK;
        Walk { at, mine, row: first + row, source, crew: PhantomData }
    }

    /// This thread's row and chunk in a group.
    #[inline(always)]
    pub fn place(crew: &W) -> (u32, u32) {
        (crew.member() / Self::ACROSS, crew.member() % Self::ACROSS)
    }

    /// `f(row, chunk)` for each of this thread's chunks of one tile's rows.
    #[inline(always)]
    pub(crate) fn each_chunk(crew: &W, f: impl Fn(u32, u32)) {
        let (row, chunk) = Self::place(crew);
        for i in 0..Self::GROUPS {
            for panel in 0..Self::PANELS {
                if i * Self::GROUP + row < SharedTile::<E, R, C>::ROWS {
                    f(i * Self::GROUP + row, panel * Self::ACROSS + chunk);
                }
            }
        }
    }
}

// SAFETY: chunks of rows and columns that exist, 16-byte aligned as `GlobalRows` promises.
unsafe impl<E: Element, const R: usize, const C: usize, W: Crew> TileWalk<E, R, C, W> for Walk<E, R, C, W> {
    /// Row groups are taken downwards: upwards, LLVM keeps an offset for each and spills
    /// (docs/performance-log.md).
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, crew: &W, copy: impl Fn(u32, u32, u64, bool)) {
        let rows = SharedTile::<E, R, C>::ROWS;
        let (row, chunk) = Self::place(crew);
        let mut at = self.at.wrapping_add(self.mine as u64);
        for i in (0..Self::GROUPS).rev() {
            let first = i * Self::GROUP;
            // Known at compile time unless the threads do not divide the tile's rows.
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
}
