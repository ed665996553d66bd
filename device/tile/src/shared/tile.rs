//! Tiles in shared memory. Only this file, `reader.rs`, `convert.rs`, `convert_rows.rs` and `epilogue`
//! compute shared addresses.
use crate::copy::{CpAsync, TileWalk, Walk};
use crate::group::{SplitGroup, ThreadGroup};
use crate::layout;
use crate::pipeline::Ready;
use contract::Element;
use core::marker::PhantomData;
use cuda_std::cp_async;

/// The layout of shared memory: `Self` reads it, and `Slot` writes it.
///
/// # Safety
/// - Values of `Self` and of `Slot` access no byte outside of the `BYTES` bytes from `base` on. Values of
///   `Self` only read. Values of `Slot` only write, with asynchronous copies or with stores.
pub unsafe trait SharedLayout: Sized {
    /// Size in bytes.
    const BYTES: usize;
    /// Alignment in bytes.
    const ALIGN: usize;
    /// The memory while copies of transport `By` write it.
    type Slot<By>;
    /// The memory at `base`, for reading.
    ///
    /// # Safety
    /// - `base` is a multiple of `ALIGN`, and `BYTES` bytes of dynamic shared memory from it on belong to no
    ///   other value.
    /// - Every thread that reads through the value has waited for the copies that fill it.
    unsafe fn at(base: u32) -> Self;
    /// The memory at `base`, for writing.
    ///
    /// # Safety
    /// - The preconditions of `at` hold, and no thread reads the memory before the copies have landed.
    unsafe fn slot<By>(base: u32) -> Self::Slot<By>;
}

/// A readable tile: `R x C` base tiles of `E`, in panels ([`layout`]). Shared memory becomes a `SharedTile`
/// only after its copies have landed.
pub struct SharedTile<E, const R: usize, const C: usize> {
    pub(crate) base: u32,
    element: PhantomData<E>,
}

/// A shared tile while copies of transport `By` write it.
pub struct TileSlot<E, const R: usize, const C: usize, By> {
    pub(super) base: u32,
    what: PhantomData<(E, By)>,
}

// SAFETY: `Self` and `Slot` address only bytes of the tile.
unsafe impl<E: Element, const R: usize, const C: usize> SharedLayout for SharedTile<E, R, C> {
    const BYTES: usize = R * C * 256 * E::BYTES;
    const ALIGN: usize = layout::PANEL_ALIGN;
    type Slot<By> = TileSlot<E, R, C, By>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        SharedTile { base, element: PhantomData }
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> TileSlot<E, R, C, By> {
        TileSlot { base, what: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// Number of rows.
    pub const ROWS: u32 = R as u32 * 16;
    /// Number of chunks per row.
    pub(crate) const ROW_CHUNKS: u32 = (C * 16 * E::BYTES) as u32 / layout::CHUNK;

    /// Byte offset of a chunk in the tile.
    #[inline(always)]
    pub(crate) const fn offset(row: u32, chunk: u32) -> u32 {
        layout::offset(Self::ROWS, Self::ROW_CHUNKS, row, chunk)
    }
}

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// The first columns of this tile, as a tile of whole panels.
    #[inline(always)]
    pub fn first_columns<const P: usize>(&self) -> Ready<'_, SharedTile<E, R, P>> {
        const { Self::has_first_columns::<P>() }
        // SAFETY: this is a part of memory that may be read as long as `self` lives, which the borrow
        // ensures.
        unsafe { Ready::at(self.base) }
    }

    /// Asserts that the first `P` base tiles of columns are whole panels of the tile.
    pub(crate) const fn has_first_columns<const P: usize>() {
        assert!(P <= C, "a tile has fewer columns than these");
        assert!(
            layout::panel_chunks(SharedTile::<E, R, P>::ROW_CHUNKS) == layout::panel_chunks(Self::ROW_CHUNKS),
            "the first columns must have the same panels"
        )
    }

    /// The split group's share of the columns, as a tile of whole panels.
    #[inline(always)]
    pub fn columns<const P: usize, const OF: usize>(
        &self,
        group: SplitGroup<OF>,
    ) -> Ready<'_, SharedTile<E, R, P>> {
        const { assert!(P * OF == C, "the shares must cover the columns") }
        const {
            assert!(
                layout::panel_chunks(SharedTile::<E, R, P>::ROW_CHUNKS)
                    == layout::panel_chunks(Self::ROW_CHUNKS),
                "a share must have the same panels"
            )
        }
        // SAFETY: this is a part of memory that may be read as long as `self` lives, which the borrow
        // ensures.
        unsafe { Ready::at(self.base + group.index() * SharedTile::<E, R, P>::BYTES as u32) }
    }
}

/// `COUNT` tiles, one after the other, for `COUNT` split groups: `COUNT * R` base tiles of rows.
pub struct SharedTiles<E, const R: usize, const C: usize, const COUNT: usize> {
    base: u32,
    element: PhantomData<E>,
}

/// The tiles of [`SharedTiles`] while copies of transport `By` write them.
pub struct TileSlots<E, const R: usize, const C: usize, const COUNT: usize, By> {
    base: u32,
    what: PhantomData<(E, By)>,
}

// SAFETY: the tiles lie one after the other.
unsafe impl<E: Element, const R: usize, const C: usize, const COUNT: usize> SharedLayout
    for SharedTiles<E, R, C, COUNT>
{
    const BYTES: usize = COUNT * SharedTile::<E, R, C>::BYTES;
    const ALIGN: usize = SharedTile::<E, R, C>::ALIGN;
    type Slot<By> = TileSlots<E, R, C, COUNT, By>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        SharedTiles { base, element: PhantomData }
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> TileSlots<E, R, C, COUNT, By> {
        TileSlots { base, what: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize> SharedTiles<E, R, C, COUNT> {
    /// The split group's tile.
    #[inline(always)]
    pub fn tile(&self, group: SplitGroup<COUNT>) -> Ready<'_, SharedTile<E, R, C>> {
        // SAFETY: this is a part of memory that may be read as long as `self` lives, which the borrow
        // ensures; there is one group per tile.
        unsafe { Ready::at(self.base + group.index() * SharedTile::<E, R, C>::BYTES as u32) }
    }
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize, By> TileSlots<E, R, C, COUNT, By> {
    /// Calls `f` with each slot, and with the tile at its place in `others`.
    #[inline(always)]
    pub(super) fn each_with<S: Element>(
        &self,
        others: &SharedTiles<S, R, C, COUNT>,
        mut f: impl FnMut(&TileSlot<E, R, C, By>, &SharedTile<S, R, C>),
    ) {
        for i in 0..COUNT {
            let base = self.base + (i * SharedTile::<E, R, C>::BYTES) as u32;
            let other = others.base + (i * SharedTile::<S, R, C>::BYTES) as u32;
            // SAFETY: parts of a place that may be written, and of a place that may be read for as long as
            // `others` lives.
            unsafe { f(&SharedTile::<E, R, C>::slot(base), &SharedTile::at(other)) }
        }
    }
}

/// Defines a stage of several tiles: `Name` for reading, and `Slot`, which has the same fields, for writing.
///
/// ```
/// use tile::shared::SharedTile;
///
/// tile::shared_layout! {
/// /// Two tiles that form one stage.
///     Stage / StageSlot<E, R, C> { a: SharedTile<E, R, C>, b: SharedTile<E, R, C> }
/// }
/// ```
#[macro_export]
macro_rules! shared_layout {
    ($(#[$doc:meta])* $name:ident / $slot:ident <$e:ident, $($c:ident),*> { $($field:ident: $t:ty),* }) => {
        $(#[$doc])*
        pub struct $name<$e: $crate::Element, $(const $c: usize),*> { $(
            #[allow(missing_docs)]
            pub $field: $t
        ),* }
        #[doc = concat!("The place of a [`", stringify!($name), "`], to be written.")]
        pub struct $slot<$e: $crate::Element, $(const $c: usize,)* By> { $(
            #[allow(missing_docs)]
            pub $field: <$t as $crate::shared::SharedLayout>::Slot<By>
        ),* }
        // SAFETY: the parts lie one after the other.
        unsafe impl<$e: $crate::Element, $(const $c: usize),*> $crate::shared::SharedLayout
            for $name<$e, $($c),*>
        {
            const BYTES: usize = {
                let mut bytes = 0;
                $(
                    let part = <$t as $crate::shared::SharedLayout>::BYTES;
                    let align = <$t as $crate::shared::SharedLayout>::ALIGN;
                    assert!(bytes % align == 0, "a part is misaligned");
                    bytes += part;
                )*
                bytes
            };
            const ALIGN: usize = {
                let mut most = 1;
                $(
                    let align = <$t as $crate::shared::SharedLayout>::ALIGN;
                    most = if align > most { align } else { most };
                )*
                most
            };
            type Slot<By> = $slot<$e, $($c,)* By>;
            #[inline(always)]
            unsafe fn at(mut base: u32) -> Self {
                $(
                    // SAFETY: the caller's promise covers all parts, which are consecutive.
                    let $field = unsafe { <$t as $crate::shared::SharedLayout>::at(base) };
                    base += <$t as $crate::shared::SharedLayout>::BYTES as u32;
                )*
                let _ = base;
                $name { $($field),* }
            }
            #[inline(always)]
            unsafe fn slot<By>(mut base: u32) -> Self::Slot<By> {
                $(
                    // SAFETY: the caller's promise covers all parts, which are consecutive.
                    let $field = unsafe { <$t as $crate::shared::SharedLayout>::slot(base) };
                    base += <$t as $crate::shared::SharedLayout>::BYTES as u32;
                )*
                let _ = base;
                $slot { $($field),* }
            }
        }
    };
}

impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> TileSlot<E, R, C, CpAsync<W>> {
    /// Starts the copies of the walk's next tile. Rows that do not exist become zero.
    #[inline(always)]
    pub fn copy_edge(&self, walk: &mut impl TileWalk<E, R, C, W>, group: &W) {
        self.copy::<true>(walk, group)
    }

    /// Starts the copies of the walk's next tile. All rows of this tile must exist, as they do in every tile
    /// of a walk except for the first.
    #[inline(always)]
    pub fn copy_whole(&self, walk: &mut impl TileWalk<E, R, C, W>, group: &W) {
        self.copy::<false>(walk, group)
    }

    #[inline(always)]
    fn copy<const EDGE: bool>(&self, walk: &mut impl TileWalk<E, R, C, W>, group: &W) {
        walk.step::<EDGE>(group, |first, panel, from, present| {
            // SAFETY: where `present`, 16 bytes may be read at a multiple of 16, as `TileWalk` promises. The
            // thread has a row in each of the tile's groups.
            unsafe { self.copy_chunk(group, first, panel, from, present) }
        });
    }

    /// Starts this thread's copy of one chunk of panel `panel`, in the group of rows that starts with row
    /// `first` of the tile. If `present` is false, the chunk becomes zero.
    ///
    /// # Safety
    /// - If `present` is true, 16 bytes may be read at `from`, a multiple of 16.
    /// - `panel` is below [`Walk::PANELS`], `first` is a multiple of [`Walk::GROUP`], and the thread's row
    ///   of the group is in the tile.
    #[inline(always)]
    pub unsafe fn copy_chunk(&self, group: &W, first: u32, panel: u32, from: u64, present: bool) {
        let (row, chunk) = Walk::<E, R, C, W>::place(group);
        let to = self.base
            + SharedTile::<E, R, C>::offset(first + row, chunk)
            + panel * (SharedTile::<E, R, C>::BYTES as u32 / Walk::<E, R, C, W>::PANELS);
        // Rows of one head of an eight-bit cache may have 64 bytes. The other half of 128 bytes is then a row
        // of the next head, which another block reads at about the same time (H200, 64 sequences of 4096 keys
        // in int8: 101 us with a prefetch, 118 us without; 16 of 8192 in e4m3: 49.7 us, 58.1 us).
        let is_short = E::BYTES == 1 && SharedTile::<E, R, C>::ROW_CHUNKS <= 4;
        // SAFETY: `to` is a chunk of this slot, which no thread reads before the copy has landed; the caller
        // promises that `from` may be read.
        unsafe {
            match is_short {
                true => cp_async::cp_async_128_or_zero(to, from, present),
                false => cp_async::cp_async_or_zero(to, from, present),
            }
        }
    }
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize, W: ThreadGroup>
    TileSlots<E, R, C, COUNT, CpAsync<W>>
{
    /// Starts the copies of the walk's next `COUNT` tiles, the last one first. Rows that do not exist become
    /// zero.
    #[inline(always)]
    pub fn copy_edge(&self, walk: &mut impl TileWalk<E, R, C, W>, group: &W) {
        self.each(|slot| slot.copy_edge(walk, group))
    }

    /// Starts the copies of the walk's next `COUNT` tiles. All of their rows exist.
    #[inline(always)]
    pub fn copy_whole(&self, walk: &mut impl TileWalk<E, R, C, W>, group: &W) {
        self.each(|slot| slot.copy_whole(walk, group))
    }

    #[inline(always)]
    fn each(&self, mut f: impl FnMut(&TileSlot<E, R, C, CpAsync<W>>)) {
        for i in (0..COUNT).rev() {
            let base = self.base + (i * SharedTile::<E, R, C>::BYTES) as u32;
            // SAFETY: this is a part of memory that may be written.
            f(&unsafe { SharedTile::<E, R, C>::slot(base) })
        }
    }
}
