//! Tiles in shared memory. Only this file, `reader.rs` and `store.rs` compute shared addresses.
use crate::{CpAsync, Crew, Ready, Team, TileWalk, Walk, layout};
use contract::Element;
use core::marker::PhantomData;
use cuda_std::cp_async;

/// What a place of shared memory can hold: `Slot` is the same, to be written.
///
/// # Safety
/// - Values of it and of its `Slot` touch no byte but the `BYTES` from `base` on, the one to read, the other
///   to start copies.
pub unsafe trait SharedLayout: Sized {
    /// Bytes that it takes.
    const BYTES: usize;
    /// What its first byte's address is a multiple of.
    const ALIGN: usize;
    /// The same place, to be written by copies that travel `By`.
    type Slot<By>;
    /// The place, to be read.
    ///
    /// # Safety
    /// - `base` is a multiple of `ALIGN` and starts `BYTES` bytes of dynamic shared memory that nothing else
    ///   stands for.
    /// - Whoever reads through the value has waited for what was written there.
    unsafe fn at(base: u32) -> Self;
    /// The place, to be written.
    ///
    /// # Safety
    /// - As `at`, and nobody reads there before the writes have landed.
    unsafe fn slot<By>(base: u32) -> Self::Slot<By>;
}

/// `R x C` base tiles of `E` that may be read, in panels ([`layout`]). Only what has landed is one.
pub struct SharedTile<E, const R: usize, const C: usize> {
    pub(crate) base: u32,
    element: PhantomData<E>,
}

/// The same place, which may be written by copies that travel `By`.
pub struct TileSlot<E, const R: usize, const C: usize, By> {
    base: u32,
    what: PhantomData<(E, By)>,
}

// SAFETY: what both address lies in the tile.
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
    /// Rows.
    pub const ROWS: u32 = R as u32 * 16;
    /// Chunks of a row.
    pub(crate) const ROW_CHUNKS: u32 = (C * 16 * E::BYTES) as u32 / layout::CHUNK;

    /// Byte offset of a chunk.
    #[inline(always)]
    pub(crate) const fn offset(row: u32, chunk: u32) -> u32 {
        layout::offset(Self::ROWS, Self::ROW_CHUNKS, row, chunk)
    }
}

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// The team's share of the columns, as a tile: whole panels, which lie one behind the other.
    #[inline(always)]
    pub fn columns<const P: usize, const OF: usize>(&self, team: Team<OF>) -> Ready<'_, SharedTile<E, R, P>> {
        const { assert!(P * OF == C, "the shares must make up the columns") }
        const {
            assert!(
                layout::panel_chunks(SharedTile::<E, R, P>::ROW_CHUNKS)
                    == layout::panel_chunks(Self::ROW_CHUNKS),
                "a share must be of the same panels"
            )
        }
        // SAFETY: part of a place that may be read for as long as `self` lives, which the borrow keeps.
        unsafe { Ready::at(self.base + team.index() * SharedTile::<E, R, P>::BYTES as u32) }
    }
}

/// `COUNT` tiles one behind the other, that different teams read: rows of `COUNT * R` base tiles.
pub struct SharedTiles<E, const R: usize, const C: usize, const COUNT: usize> {
    base: u32,
    element: PhantomData<E>,
}

/// The same place, which may be written by copies that travel `By`.
pub struct TileSlots<E, const R: usize, const C: usize, const COUNT: usize, By> {
    base: u32,
    what: PhantomData<(E, By)>,
}

// SAFETY: tiles, one behind the other.
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
    /// The team's tile.
    #[inline(always)]
    pub fn tile(&self, team: Team<COUNT>) -> Ready<'_, SharedTile<E, R, C>> {
        // SAFETY: part of a place that may be read for as long as `self` lives, which the borrow keeps;
        // there are as many teams as tiles.
        unsafe { Ready::at(self.base + team.index() * SharedTile::<E, R, C>::BYTES as u32) }
    }
}

/// Names the tiles that travel together: `Name` to read them, `Slot` (the same fields) to write them.
///
/// ```
/// tile::shared_layout! {
///     /// Two tiles that travel as one stage.
///     Stage / StageSlot<E, R, C> { a: tile::SharedTile<E, R, C>, b: tile::SharedTile<E, R, C> }
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
            pub $field: <$t as $crate::SharedLayout>::Slot<By>
        ),* }
        // SAFETY: its parts, one behind the other.
        unsafe impl<$e: $crate::Element, $(const $c: usize),*> $crate::SharedLayout for $name<$e, $($c),*> {
            const BYTES: usize = {
                let mut bytes = 0;
                $(
                    let (part, align) =
                        (<$t as $crate::SharedLayout>::BYTES, <$t as $crate::SharedLayout>::ALIGN);
                    assert!(bytes % align == 0, "a part begins where it may not");
                    bytes += part;
                )*
                bytes
            };
            const ALIGN: usize = {
                let mut most = 1;
                $(
                    let align = <$t as $crate::SharedLayout>::ALIGN;
                    most = if align > most { align } else { most };
                )*
                most
            };
            type Slot<By> = $slot<$e, $($c,)* By>;
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
            unsafe fn slot<By>(mut base: u32) -> Self::Slot<By> {
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

impl<E: Element, const R: usize, const C: usize, W: Crew> TileSlot<E, R, C, CpAsync<W>> {
    /// Starts copying the walk's next tile; rows that do not exist become zero.
    #[inline(always)]
    pub fn copy_edge(&self, walk: &mut impl TileWalk<E, R, C, W>, crew: &W) {
        self.copy::<true>(walk, crew)
    }

    /// Starts copying the walk's next tile, all of whose rows exist: true of every tile but the first of a
    /// walk.
    #[inline(always)]
    pub fn copy_whole(&self, walk: &mut impl TileWalk<E, R, C, W>, crew: &W) {
        self.copy::<false>(walk, crew)
    }

    #[inline(always)]
    fn copy<const EDGE: bool>(&self, walk: &mut impl TileWalk<E, R, C, W>, crew: &W) {
        walk.step::<EDGE>(crew, |first, panel, from, present| {
            // SAFETY: 16 bytes that may be read where `present`, at a multiple of 16, as `TileWalk` promises;
            // the thread has a row in each of its groups.
            unsafe { self.copy_chunk(crew, first, panel, from, present) }
        });
    }

    /// Starts copying this thread's chunk of panel `panel` in the group of rows from `first` on; it becomes
    /// zero where not `present`.
    ///
    /// # Safety
    /// - 16 bytes may be read at `from`, a multiple of 16, where `present`.
    /// - The thread has a row in the group.
    #[inline(always)]
    pub unsafe fn copy_chunk(&self, crew: &W, first: u32, panel: u32, from: u64, present: bool) {
        let (row, chunk) = Walk::<E, R, C, W>::place(crew);
        let to = self.base
            + SharedTile::<E, R, C>::offset(first + row, chunk)
            + panel * (SharedTile::<E, R, C>::BYTES as u32 / Walk::<E, R, C, W>::PANELS);
        // SAFETY: `to` is a chunk of this slot, which nobody reads before the copy has landed; of `from` the
        // caller's promise.
        unsafe { cp_async::cp_async_or_zero(to, from, present) }
    }
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize, W: Crew>
    TileSlots<E, R, C, COUNT, CpAsync<W>>
{
    /// Starts copying the walk's next `COUNT` tiles, the last one first; rows that do not exist become zero.
    #[inline(always)]
    pub fn copy_edge(&self, walk: &mut impl TileWalk<E, R, C, W>, crew: &W) {
        self.each(|slot| slot.copy_edge(walk, crew))
    }

    /// Starts copying the walk's next `COUNT` tiles, all of whose rows exist.
    #[inline(always)]
    pub fn copy_whole(&self, walk: &mut impl TileWalk<E, R, C, W>, crew: &W) {
        self.each(|slot| slot.copy_whole(walk, crew))
    }

    #[inline(always)]
    fn each(&self, mut f: impl FnMut(&TileSlot<E, R, C, CpAsync<W>>)) {
        for i in (0..COUNT).rev() {
            let base = self.base + (i * SharedTile::<E, R, C>::BYTES) as u32;
            // SAFETY: part of a place that may be written.
            f(&unsafe { SharedTile::<E, R, C>::slot(base) })
        }
    }
}
