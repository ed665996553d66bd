//! Tiles in shared memory. Only this file and `store.rs` compute shared addresses.
use crate::{Crew, Mma, Ready, Walk, Warp, layout};
use core::marker::PhantomData;
use cuda_std::cp_async;

/// A type that lives at an address of the shared window; `Slot` is the same place, to be written.
pub trait SharedLayout: Sized {
    /// Bytes that it takes.
    const BYTES: usize;
    /// The same place, to be written by copies.
    type Slot;
    /// The place, to be read.
    ///
    /// # Safety
    /// - `base` is a multiple of 128 and starts `BYTES` bytes of dynamic shared memory that nothing else stands for.
    /// - Whoever reads through the value has waited for what was written there.
    unsafe fn at(base: u32) -> Self;
    /// The place, to be written.
    ///
    /// # Safety
    /// - As `at`, and nobody reads there before the writes have landed.
    unsafe fn slot(base: u32) -> Self::Slot;
}

/// `R x C` base tiles of `E` that may be read. Only `Ready` and `InFlight::land` hand one out.
pub struct SharedTile<E, const R: usize, const C: usize> {
    pub(crate) base: u32,
    element: PhantomData<E>,
}

/// The same place, which may be written by asynchronous copies.
pub struct TileSlot<E, const R: usize, const C: usize> {
    base: u32,
    element: PhantomData<E>,
}

impl<E: Mma, const R: usize, const C: usize> SharedLayout for SharedTile<E, R, C> {
    const BYTES: usize = R * C * 256 * E::BYTES;
    type Slot = TileSlot<E, R, C>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        SharedTile { base, element: PhantomData }
    }
    #[inline(always)]
    unsafe fn slot(base: u32) -> TileSlot<E, R, C> {
        TileSlot { base, element: PhantomData }
    }
}

/// `COUNT` tiles one behind the other, that different warps read: rows of `COUNT * R` base tiles.
pub struct SharedTiles<E, const R: usize, const C: usize, const COUNT: usize> {
    base: u32,
    element: PhantomData<E>,
}

/// The same place, which may be written by asynchronous copies.
pub struct TileSlots<E, const R: usize, const C: usize, const COUNT: usize> {
    base: u32,
    element: PhantomData<E>,
}

impl<E: Mma, const R: usize, const C: usize, const COUNT: usize> SharedLayout for SharedTiles<E, R, C, COUNT> {
    const BYTES: usize = COUNT * SharedTile::<E, R, C>::BYTES;
    type Slot = TileSlots<E, R, C, COUNT>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        SharedTiles { base, element: PhantomData }
    }
    #[inline(always)]
    unsafe fn slot(base: u32) -> TileSlots<E, R, C, COUNT> {
        TileSlots { base, element: PhantomData }
    }
}

impl<E: Mma, const R: usize, const C: usize, const COUNT: usize> SharedTiles<E, R, C, COUNT> {
    /// Tile `i`, which must be below `COUNT`.
    #[inline(always)]
    pub fn tile(&self, i: u32) -> Ready<'_, SharedTile<E, R, C>> {
        debug_assert!(i < COUNT as u32);
        // SAFETY: part of a place that may be read for as long as `self` lives, which the borrow keeps.
        unsafe { Ready::at(self.base + i * SharedTile::<E, R, C>::BYTES as u32) }
    }
}

impl<E: Mma, const R: usize, const C: usize, const COUNT: usize> TileSlots<E, R, C, COUNT> {
    /// Starts copying the walk's next `COUNT` tiles, the last one first; rows that do not exist become zero.
    #[inline(always)]
    pub fn copy_edge<W: Crew>(&mut self, walk: &mut Walk<E, R, C>, crew: &W) {
        self.each(|slot| slot.copy_edge(walk, crew))
    }

    /// Starts copying the walk's next `COUNT` tiles, all of whose rows exist.
    #[inline(always)]
    pub fn copy_whole<W: Crew>(&mut self, walk: &mut Walk<E, R, C>, crew: &W) {
        self.each(|slot| slot.copy_whole(walk, crew))
    }

    #[inline(always)]
    fn each(&mut self, mut f: impl FnMut(&mut TileSlot<E, R, C>)) {
        for i in (0..COUNT).rev() {
            // SAFETY: part of a place that may be written.
            f(&mut unsafe { SharedTile::<E, R, C>::slot(self.base + (i * SharedTile::<E, R, C>::BYTES) as u32) })
        }
    }
}

impl<A: SharedLayout, B: SharedLayout> SharedLayout for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;
    type Slot = (A::Slot, B::Slot);
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        // SAFETY: the two halves of what the caller promises.
        unsafe { (A::at(base), B::at(base + A::BYTES as u32)) }
    }
    #[inline(always)]
    unsafe fn slot(base: u32) -> Self::Slot {
        // SAFETY: the two halves of what the caller promises.
        unsafe { (A::slot(base), B::slot(base + A::BYTES as u32)) }
    }
}

/// Names the tiles that travel together: `Name` to read them, `Slot` (the same fields) to write them.
///
/// ```
/// tile::shared_layout! {
///     /// A K block and a V block that travel as one stage.
///     Stage / StageSlot<E, N, D> { k: tile::SharedTile<E, N, D>, v: tile::SharedTile<E, N, D> }
/// }
/// ```
#[macro_export]
macro_rules! shared_layout {
    ($(#[$doc:meta])* $name:ident / $slot:ident <$e:ident, $($c:ident),*> { $($field:ident: $t:ty),* }) => {
        $(#[$doc])*
        pub struct $name<$e: $crate::Mma, $(const $c: usize),*> { $(
            #[allow(missing_docs)]
            pub $field: $t
        ),* }
        #[doc = concat!("The place of a [`", stringify!($name), "`], to be written.")]
        pub struct $slot<$e: $crate::Mma, $(const $c: usize),*> { $(
            #[allow(missing_docs)]
            pub $field: <$t as $crate::SharedLayout>::Slot
        ),* }
        impl<$e: $crate::Mma, $(const $c: usize),*> $crate::SharedLayout for $name<$e, $($c),*> {
            const BYTES: usize = 0 $(+ <$t as $crate::SharedLayout>::BYTES)*;
            type Slot = $slot<$e, $($c),*>;
            #[inline(always)]
            unsafe fn at(mut base: u32) -> Self {
                $(
                    // SAFETY: consecutive parts of what the caller promises.
                    let $field = unsafe { <$t as $crate::SharedLayout>::at(base) };
                    base += <$t as $crate::SharedLayout>::BYTES as u32;
                )*
                let _ = base;
                $name { $($field),* }
            }
            #[inline(always)]
            unsafe fn slot(mut base: u32) -> Self::Slot {
                $(
                    // SAFETY: consecutive parts of what the caller promises.
                    let $field = unsafe { <$t as $crate::SharedLayout>::slot(base) };
                    base += <$t as $crate::SharedLayout>::BYTES as u32;
                )*
                let _ = base;
                $slot { $($field),* }
            }
        }
    };
}

/// This lane's `ldmatrix` addresses in a tile `C` base tiles wide: one register for each pattern of the swizzle, the rest is an immediate.
#[derive(Clone, Copy)]
pub(crate) struct Reader<E, const C: usize> {
    patterns: [u32; 4],
    element: PhantomData<E>,
}

impl<E: Mma, const C: usize> Reader<E, C> {
    const CHUNKS: u32 = (C * 16 * E::BYTES) as u32 / layout::CHUNK;
    /// Base tiles within which the swizzle works.
    const PERIOD: u32 = layout::period(Self::CHUNKS) / 2;

    #[inline(always)]
    fn new(base: u32, lane: u32, order: fn(u32) -> [u32; 2]) -> Self {
        let [row, chunk] = order(lane);
        let first = layout::offset(Self::CHUNKS, row, chunk);
        let swizzled = first % (Self::PERIOD * 32);
        // Column tile `i` flips bits of the chunk number above the lowest; rows of a base tile all start whole periods.
        let patterns = [0, 1, 2, 3].map(|i| base.wrapping_add(first - swizzled + (swizzled ^ (i % Self::PERIOD * 32))));
        Reader { patterns, element: PhantomData }
    }

    /// For transposed B operands.
    #[inline(always)]
    pub(crate) fn rows_first(base: u32, lane: u32) -> Self {
        Self::new(base, lane, layout::rows_first)
    }

    /// For A operands, and B operands read with `.trans`. The two orders differ by one number a lane, whatever the pattern: that number goes
    /// into the base, and no second set of four registers is needed.
    #[inline(always)]
    pub(crate) fn columns_first(base: u32, lane: u32) -> Self {
        let at = |[row, chunk]: [u32; 2]| layout::offset(Self::CHUNKS, row, chunk);
        let shift = at(layout::columns_first(lane)).wrapping_sub(at(layout::rows_first(lane)));
        Self::rows_first(base.wrapping_add(shift), lane)
    }

    /// Address for base tile `(row, column)`.
    #[inline(always)]
    pub(crate) fn tile(&self, row: usize, column: usize) -> u32 {
        let (period, within) = (column as u32 / Self::PERIOD, column as u32 % Self::PERIOD);
        self.patterns[within as usize]
            .wrapping_add(row as u32 * 16 * Self::CHUNKS * layout::CHUNK + period * Self::PERIOD * 32)
    }
}

impl<E: Mma, const R: usize, const C: usize> SharedTile<E, R, C> {
    pub(crate) const ROW_CHUNKS: u32 = (C * 16 * E::BYTES) as u32 / layout::CHUNK;

    #[inline(always)]
    pub(crate) fn rows_first(&self, warp: Warp) -> Reader<E, C> {
        Reader::rows_first(self.base, warp.lane)
    }

    /// `first`: base-tile row where the reader starts.
    #[inline(always)]
    pub(crate) fn columns_first(&self, first: u32, warp: Warp) -> Reader<E, C> {
        Reader::columns_first(self.base + layout::offset(Self::ROW_CHUNKS, first * 16, 0), warp.lane)
    }
}

impl<E: Mma, const R: usize, const C: usize> TileSlot<E, R, C> {
    /// Starts copying the walk's next tile; rows that do not exist become zero.
    #[inline(always)]
    pub fn copy_edge<W: Crew>(&mut self, walk: &mut Walk<E, R, C>, crew: &W) {
        self.copy::<W, true>(walk, crew)
    }

    /// Starts copying the walk's next tile, all of whose rows exist: true of every tile but the first of a walk.
    #[inline(always)]
    pub fn copy_whole<W: Crew>(&mut self, walk: &mut Walk<E, R, C>, crew: &W) {
        self.copy::<W, false>(walk, crew)
    }

    #[inline(always)]
    fn copy<W: Crew, const EDGE: bool>(&mut self, walk: &mut Walk<E, R, C>, crew: &W) {
        let (row, chunk) = Walk::<E, R, C>::place(crew);
        walk.step::<W, EDGE>(crew, |first, column, from, present| {
            let to =
                self.base + layout::offset(Walk::<E, R, C>::ROW_CHUNKS, first + row, chunk) + column * layout::CHUNK;
            // SAFETY: `to` is a chunk of this slot, which nobody reads before the copy has landed; `from` is one of a row and column that
            // exist where `present`, 16-byte aligned as `GlobalRows` promises.
            unsafe { cp_async::cp_async_or_zero(to, from, present) }
        });
    }
}
