//! Stages that the copy engine fills and warpgroups read: the two sides of a [`Relay`] by [`Tma`].
//!
//! *Full* ends a phase when the engine has written a stage: one arrival, of the thread that starts the
//! copies, says how many bytes to wait for. *Empty* ends one when every warp of every warpgroup has left
//! the stage. Stages are read by `wgmma` alone, which takes a tile by its descriptor; so a stage is never
//! seen as a [`SharedTile`]. The descriptor is one 64-bit sum from the ring's: put together anew for each
//! product, it would cost three instructions more a product.
use crate::crew::sealed::Sealed;
use crate::relay::Turn;
use crate::roles::TwoSided;
use crate::{
    Block, Consumer, Producer, Relay, SharedLayout, SharedTile, SharedTiles, Transport, Warp, layout,
};
use contract::{Element, Kernel, TensorMap};
use core::marker::PhantomData;
use cuda_std::math::opaque_b64;
use cuda_std::wgmma::{self, Swizzle};
use cuda_std::{mbarrier, tma};

/// By the copy engine, box by box of a tensor map.
pub struct Tma;
impl Sealed for Tma {}
impl Transport for Tma {
    const ARRIVALS: u32 = 1;
    /// So that another ring may follow.
    const ROUND: usize = layout::PANEL_ALIGN;
}

/// A tensor as the copy engine sees it: `[batch][head][row][column]`, taken in boxes of `R` base tiles of
/// rows and a panel's columns. `C` base tiles of columns make up a row; those that do not exist are zero,
/// and not written.
pub struct GlobalTiles<E, const R: usize, const C: usize> {
    map: u64,
    element: PhantomData<E>,
}

impl<K: Kernel> Block<K> {
    /// The tensor behind a map of the launch's parameter, which says so of its boxes.
    #[inline(always)]
    pub fn tensor<E: Element, const R: usize, const C: usize>(
        &self,
        map: impl FnOnce(&K::Params) -> &TensorMap,
    ) -> GlobalTiles<E, R, C> {
        const { assert!(K::PARAM_ALIGN >= TensorMap::ALIGN, "a tensor map lies on 64 bytes") }
        // SAFETY: the parameter lies there until the launch ends, as `enter` was promised; nobody writes it.
        let parameter = unsafe { &*core::ptr::with_exposed_provenance::<K::Params>(self.parameter as usize) };
        GlobalTiles { map: core::ptr::from_ref(map(parameter)).addr() as u64, element: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize> GlobalTiles<E, R, C> {
    /// Starts storing a tile, whose rows begin with `row` of a head of a batch.
    ///
    /// # Safety
    /// - `from` is where a `SharedTile<E, R, C>` lies, written, fenced, and met at a barrier by all who
    ///   wrote.
    /// - Nobody writes there before the thread of `condition` has waited for its stores.
    #[inline(always)]
    pub(crate) unsafe fn store_if(&self, from: u32, [row, head, batch]: [u32; 3], condition: bool) {
        for panel in 0..SharedTile::<E, R, C>::PANELS {
            let at = [panel * SharedTile::<E, R, C>::PANEL_COLUMNS, row, head, batch];
            let from = from + panel * SharedTile::<E, R, C>::PANEL_BYTES;
            // SAFETY: the caller's promise; the map's boxes are panels of the tile.
            unsafe { tma::store_4d_if(self.map, at, from, condition) }
        }
        tma::commit_group();
    }
}

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// Columns of a panel.
    const PANEL_COLUMNS: u32 = layout::panel_chunks(Self::ROW_CHUNKS) * layout::CHUNK / E::BYTES as u32;
    /// How many panels.
    const PANELS: u32 = C as u32 * 16 / Self::PANEL_COLUMNS;
    /// Bytes of a panel.
    const PANEL_BYTES: u32 = Self::ROWS * layout::row_bytes(Self::ROW_CHUNKS);
    /// How `wgmma` is told of the swizzle.
    const SWIZZLE: Swizzle = match layout::panel_chunks(Self::ROW_CHUNKS) {
        8 => Swizzle::Bytes128,
        _ => Swizzle::Bytes64,
    };
    /// What is added to a descriptor for so many bytes.
    const fn bytes(bytes: u32) -> u64 {
        (bytes / 16) as u64
    }

    /// From a tile's descriptor to that of k-step `k`, where columns are summed over: 32 bytes on in a
    /// panel's rows.
    #[inline(always)]
    pub(crate) const fn along_rows(k: usize) -> u64 {
        let steps = Self::PANEL_COLUMNS / 16;
        Self::bytes(k as u32 / steps * Self::PANEL_BYTES + k as u32 % steps * 16 * E::BYTES as u32)
    }

    /// The same where rows are summed over: 16 rows on in every panel.
    #[inline(always)]
    pub(crate) const fn along_columns(k: usize) -> u64 {
        Self::bytes(k as u32 * 16 * layout::row_bytes(Self::ROW_CHUNKS))
    }
}

/// What the copy engine can fill a stage with: tiles, one behind the other.
pub trait Boxes: SharedLayout + Sealed {
    /// The tensor that they are of.
    type Tensor;
    /// Starts the copies of a stage at `to`; `at` is row, head and batch.
    ///
    /// # Safety
    /// - The stage is this thread's to fill, and the phase of `full` expects all of its bytes.
    unsafe fn load(to: u32, from: &Self::Tensor, at: [u32; 3], full: u32);
    /// The descriptor of the first tile of a ring at `base`.
    fn descriptor(base: u32) -> u64;
}

macro_rules! boxes {
    ($($tiles:ident<$($count:ident)?>: $n:expr;)*) => {$(
        impl<E, const R: usize, const C: usize, $(const $count: usize)?> Sealed
            for $tiles<E, R, C, $($count)?>
        {
        }
        impl<E: Element, const R: usize, const C: usize, $(const $count: usize)?> Boxes
            for $tiles<E, R, C, $($count)?>
        {
            type Tensor = GlobalTiles<E, R, C>;
            #[inline(always)]
            unsafe fn load(to: u32, from: &Self::Tensor, [row, head, batch]: [u32; 3], full: u32) {
                for tile in 0..$n {
                    for panel in 0..SharedTile::<E, R, C>::PANELS {
                        let column = panel * SharedTile::<E, R, C>::PANEL_COLUMNS;
                        let row = row + tile * SharedTile::<E, R, C>::ROWS;
                        let panels = tile * SharedTile::<E, R, C>::PANELS + panel;
                        let to = to + panels * SharedTile::<E, R, C>::PANEL_BYTES;
                        // SAFETY: the caller's promise; a box is a panel.
                        unsafe { tma::load_4d(to, from.map, [column, row, head, batch], full) }
                    }
                }
            }
            #[inline(always)]
            fn descriptor(base: u32) -> u64 {
                wgmma::descriptor(base, SharedTile::<E, R, C>::PANEL_BYTES, SharedTile::<E, R, C>::SWIZZLE)
            }
        }
    )*};
}
boxes! {
    SharedTile<>: 1;
    SharedTiles<COUNT>: COUNT as u32;
}

/// A stage that several products read, until it is dropped. (Forgotten, it is never refilled: a wait
/// without end.)
pub struct Kept<'c, T> {
    descriptor: u64,
    empty: u32,
    warp: Warp,
    consumer: PhantomData<&'c T>,
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize> Kept<'_, SharedTiles<E, R, C, COUNT>> {
    /// The descriptor of one of its tiles.
    #[inline(always)]
    pub(crate) fn tile(&self, index: u32) -> u64 {
        self.descriptor + index as u64 * SharedTile::<E, R, C>::bytes(SharedTile::<E, R, C>::BYTES as u32)
    }

    /// Where one of its tiles lies.
    #[inline(always)]
    pub(crate) fn address(&self, index: u32) -> u32 {
        ((self.tile(index) & 0x3fff) as u32) << 4
    }
}

impl<T> Drop for Kept<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: one arrival a warp and phase, which cannot have ended without it.
        unsafe { mbarrier::arrive_if(self.empty, self.warp.lane == 0) }
    }
}

impl<T: Boxes, const S: usize> TwoSided for Relay<T, S, Tma> {
    type Producer = Producer<T, S, Tma>;
    type Consumer = Consumer<T, S, Tma>;
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        let mut turn = Turn::<T, S>::first(self.base);
        for _ in 0..S {
            // SAFETY: the bytes behind the stages, which `self` stands for; the rest is the caller's promise.
            unsafe {
                mbarrier::init(turn.full().address, Tma::ARRIVALS);
                mbarrier::init(turn.empty().address, consumers);
            }
            turn.advance();
        }
    }
    #[inline(always)]
    unsafe fn producer(self, warp: Warp) -> Self::Producer {
        Producer { turn: Turn::first(self.base), warp, by: PhantomData }
    }
    #[inline(always)]
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer {
        Consumer { turn: Turn::first(self.base), warp, by: PhantomData }
    }
}

impl<T: Boxes, const S: usize> Producer<T, S, Tma> {
    /// Waits until the next stage is empty and starts its copies, from `[row, head, batch]` on.
    #[inline(always)]
    pub fn load(&mut self, from: &T::Tensor, at: [u32; 3]) {
        let full = self.turn.full().address;
        // SAFETY: initialised by `specialise`. All consumers have left the stage, or none has had it yet:
        // the phase before the first counts as ended. The copies that follow are of so many bytes, and the
        // phase's only arrival is this one.
        unsafe {
            mbarrier::wait_parity(self.turn.empty().address, self.turn.parity ^ 1);
            mbarrier::arrive_expect_tx(full, T::BYTES as u32);
            T::load(self.turn.address(), from, at, full);
        }
        self.turn.advance();
    }
}

impl<T: Boxes, const S: usize> Consumer<T, S, Tma> {
    /// Waits for the next stage.
    #[inline(always)]
    pub fn wait(&mut self) -> Kept<'_, T> {
        self.arrived();
        // In one place it is the same at each wait. Of k-steps that were summed before the loop over these,
        // ptxas 13.0 has lost upper halves.
        let descriptor = if S == 1 { opaque_b64(self.descriptor()) } else { self.descriptor() };
        let empty = self.turn.empty().address;
        self.turn.advance();
        Kept { descriptor, empty, warp: self.warp, consumer: PhantomData }
    }

    /// Waits until the next stage is full.
    #[inline(always)]
    pub(crate) fn arrived(&self) {
        // SAFETY: initialised by `specialise`.
        unsafe { mbarrier::wait_parity(self.turn.full().address, self.turn.parity) }
    }

    /// The descriptor of the next stage's first tile.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> u64 {
        T::descriptor(self.turn.base) + self.turn.stage as u64 * (T::BYTES / 16) as u64
    }

    /// Leaves the next stage, which nobody of this warp reads any more.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        // SAFETY: one arrival a warp and phase, which cannot have ended without it.
        unsafe { mbarrier::arrive_if(self.turn.empty().address, self.warp.lane == 0) }
        self.turn.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::F16;

    /// What the products add to a descriptor leads to where the copy engine has put the chunk that they
    /// begin with.
    fn check<const R: usize, const C: usize>() {
        type Tile<const R: usize, const C: usize> = SharedTile<F16, R, C>;
        for k in 0..C {
            assert_eq!(Tile::<R, C>::along_rows(k) * 16, Tile::<R, C>::offset(0, 2 * k as u32) as u64);
        }
        for k in 0..R {
            assert_eq!(Tile::<R, C>::along_columns(k) * 16, Tile::<R, C>::offset(16 * k as u32, 0) as u64);
        }
        let panels = Tile::<R, C>::PANELS;
        assert_eq!((panels * Tile::<R, C>::PANEL_BYTES) as usize, Tile::<R, C>::BYTES);
        assert_eq!(panels * Tile::<R, C>::PANEL_COLUMNS, C as u32 * 16);
        for panel in 0..panels {
            let first = panel * Tile::<R, C>::PANEL_COLUMNS / 8;
            assert_eq!(Tile::<R, C>::offset(0, first), panel * Tile::<R, C>::PANEL_BYTES);
        }
    }

    #[test]
    fn descriptors_lead_to_what_the_engine_wrote() {
        check::<4, 4>();
        check::<8, 4>();
        check::<6, 6>();
        check::<8, 8>();
        check::<7, 12>();
        check::<5, 16>();
    }

    #[test]
    fn a_descriptor_has_its_fields() {
        let address = 0x2_4400;
        let wide = SharedTile::<F16, 8, 8>::descriptor(address);
        assert_eq!(
            (wide >> 62, wide >> 32 & 0x3fff, wide >> 16 & 0x3fff, wide & 0x3fff),
            (1, 64, 1024, 0x2440)
        );
        let narrow = SharedTile::<F16, 8, 6>::descriptor(address);
        assert_eq!((narrow >> 62, narrow >> 32 & 0x3fff, narrow >> 16 & 0x3fff), (2, 32, 512));
    }
}
