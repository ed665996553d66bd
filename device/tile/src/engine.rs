//! Stages that the copy engine fills and warpgroups read: the two sides of a [`Relay`] by [`Tma`].
//!
//! *Full* ends a phase when the engine has written a stage: one arrival, of the thread that starts the
//! copies, or of the first of several, says how many bytes to wait for. *Empty* ends one when every warp of
//! every warpgroup has left the stage. Stages are read by `wgmma` alone, which takes a tile by its
//! descriptor; so a stage is never seen as a [`SharedTile`]. The descriptor is one 64-bit sum from the
//! ring's: put together anew for each product, it would cost three instructions more a product.
use crate::crew::sealed::Sealed;
use crate::maps::Panels;
use crate::relay::Turn;
use crate::roles::TwoSided;
use crate::{
    Consumer, GlobalTiles, Map, Producer, Relay, SharedLayout, SharedTile, SharedTiles, Transport, Warp,
    layout,
};
use contract::{Element, TensorMap};
use core::marker::PhantomData;
use cuda_std::math::opaque_b64;
use cuda_std::memory::{ld_shared_v4_b32_if, st_shared_v4_b32};
use cuda_std::wgmma::{self, Swizzle};
use cuda_std::{mbarrier, thread};

/// By the copy engine, box by box of tensor maps of one kind.
pub struct Tma<M = TensorMap>(PhantomData<M>);
/// The same, and beside each stage is a note of who has started the copies, for all who read the stage.
pub struct Noted<M = TensorMap>(PhantomData<M>);

/// What a note says.
pub type Note = [u32; 8];

/// A transport by the copy engine.
pub trait Engine: Transport {
    /// The kind of its maps.
    type Map: Map;
}

macro_rules! engines {
    ($($by:ident: $note:expr;)*) => {$(
        impl<M> Sealed for $by<M> {}
        impl<M: Map> Transport for $by<M> {
            const ARRIVALS: u32 = 1;
            const NOTE_BYTES: usize = $note;
            /// So that another ring may follow.
            const ROUND: usize = layout::PANEL_ALIGN;
        }
        impl<M: Map> Engine for $by<M> {
            type Map = M;
        }
    )*};
}
engines! {
    Tma: 0;
    Noted: size_of::<Note>();
}

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// Columns of a panel.
    pub(crate) const PANEL_COLUMNS: u32 =
        layout::panel_chunks(Self::ROW_CHUNKS) * layout::CHUNK / E::BYTES as u32;
    /// How many panels.
    pub(crate) const PANELS: u32 = C as u32 * 16 / Self::PANEL_COLUMNS;
    /// Bytes of a panel.
    pub(crate) const PANEL_BYTES: u32 = Self::ROWS * layout::row_bytes(Self::ROW_CHUNKS);
    /// All of them.
    pub(crate) const IN_PANELS: Panels = Panels {
        count: Self::PANELS,
        columns: Self::PANEL_COLUMNS,
        rows: Self::ROWS,
        row_bytes: layout::row_bytes(Self::ROW_CHUNKS),
    };
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
    /// The tensor that they are of, through a map of kind `M`.
    type Tensor<M: Map>;
    /// Rows of a tile.
    const ROWS: u32;
    /// Starts the `copier`-th thread's share of the copies of a stage at `to`, from the row `at` on.
    ///
    /// # Safety
    /// - The stage is these threads' to fill, and the phase of `full` expects all of its bytes.
    unsafe fn load<M: Map>(to: u32, from: &Self::Tensor<M>, at: M::At, full: u32, copier: u32);
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
            type Tensor<M: Map> = GlobalTiles<E, R, C, M>;
            const ROWS: u32 = SharedTile::<E, R, C>::ROWS;
            #[inline(always)]
            unsafe fn load<M: Map>(to: u32, from: &Self::Tensor<M>, at: M::At, full: u32, copier: u32) {
                for tile in 0..$n {
                    let at = M::down(at, tile * Self::ROWS);
                    let to = to + tile * SharedTile::<E, R, C>::BYTES as u32;
                    // SAFETY: the caller's promise.
                    unsafe { from.load(to, at, full, copier) }
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

impl<T: Boxes, const S: usize, By: Engine> TwoSided for Relay<T, S, By> {
    type Producer = Producer<T, S, By>;
    type Consumer = Consumer<T, S, By>;
    const COPIERS: u32 = By::Map::COPIERS;
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        let mut turn = Turn::<T, S>::first(self.base);
        for _ in 0..S {
            // SAFETY: the bytes behind the stages, which `self` stands for; the rest is the caller's promise.
            unsafe {
                mbarrier::init(turn.full().address, By::ARRIVALS);
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

impl<T: Boxes, const S: usize, By: Engine> Producer<T, S, By> {
    /// Waits until the next stage is empty, leaves what there is to `leave` beside it, and starts its copies,
    /// each thread its share of them.
    #[inline(always)]
    fn fill<M: Map>(&mut self, from: &T::Tensor<M>, at: M::At, leave: impl FnOnce(&Turn<T, S>))
    where
        By: Engine<Map = M>,
    {
        let (full, copier) = (self.turn.full().address, self.warp.index);
        if M::has_some(&at, T::ROWS, copier) {
            // SAFETY: initialised by `specialise`. All consumers have left the stage, or none has had it yet:
            // the phase before the first counts as ended. All threads' copies are of so many bytes, and the
            // phase's only arrival is the first thread's: it does not end before all have landed, whichever
            // thread is ahead.
            unsafe {
                mbarrier::wait_parity(self.turn.empty().address, self.turn.parity ^ 1);
                if copier == 0 {
                    leave(&self.turn);
                    mbarrier::arrive_expect_tx(full, T::BYTES as u32);
                }
                T::load(self.turn.address(), from, at, full, copier);
            }
        } else if copier < M::COPIERS {
            // It has not waited for the stage, since nobody would wait for it to: it could miss a phase, and
            // take the one after the next for it. So it may have none of any later one either.
            thread::exit()
        }
        self.turn.advance();
    }
}

impl<T: Boxes, const S: usize, M: Map> Producer<T, S, Tma<M>> {
    /// Waits until the next stage is empty and starts its copies, from the row `at` on. Where several threads
    /// share them, one that has no box of a stage ends: boxes of all rings had better be of one size. Of
    /// smaller ones behind it some would not be copied, and waited for without end.
    #[inline(always)]
    pub fn load(&mut self, from: &T::Tensor<M>, at: M::At) {
        self.fill(from, at, |_| ())
    }
}

impl<T: Boxes, const S: usize, M: Map> Producer<T, S, Noted<M>> {
    /// The same, with a note.
    #[inline(always)]
    pub fn load(&mut self, note: Note, from: &T::Tensor<M>, at: M::At) {
        self.fill(from, at, |turn| write(turn, note))
    }
}

/// Writes the note beside an empty stage, whose phase of *full* this thread has still to arrive at.
#[inline(always)]
fn write<T: Boxes, const S: usize>(turn: &Turn<T, S>, [a, b, c, d, e, f, g, h]: Note) {
    // SAFETY: the note's bytes, on 16, behind the barriers. Who has read them has left the stage.
    unsafe {
        st_shared_v4_b32(turn.note(), [a, b, c, d]);
        st_shared_v4_b32(turn.note() + 16, [e, f, g, h]);
    }
}

impl<T: Boxes, const S: usize, M: Map> Consumer<T, S, Noted<M>> {
    /// Waits for the next stage, and reads what stands beside it. The stage is still the next.
    #[inline(always)]
    pub fn note(&mut self) -> Note {
        self.arrived();
        let reads = self.warp.lane == 0;
        // SAFETY: written before the arrival that has ended the phase, and not again before this warp has
        // left the stage, which it has not yet taken: the lane that says so is the one that reads.
        let [a, b] = [0, 16].map(|half| unsafe { ld_shared_v4_b32_if(self.turn.note() + half, reads) });
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]].map(|word| self.warp.uniform(word))
    }
}

impl<T: Boxes, const S: usize, By: Engine> Consumer<T, S, By> {
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
