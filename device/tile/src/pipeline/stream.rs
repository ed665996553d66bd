//! Rings that belong to single warps. A warp refills a stage as soon as it has read the stage, so all stages
//! are in flight while the warp waits.
//!
//! A block barrier is expensive, so [`Pipeline`](crate::pipeline::Pipeline) has one per stage, after which it
//! refills the previous stage. A warp barrier costs almost nothing, so a stream refills a stage directly
//! after its use. Closures read and refill a stage, so no view outlives its turn.
//!
//! A stage may have a part `X` that lies beside all stages, because stages begin at multiples of their
//! alignment: a small part at a stage's end would waste the rest.
//!
//! A [`Stream`] also knows the shared memory of all warps' rings, which [`Stream::reclaim`] returns.
use crate::copy::{CpAsync, GroupTransport};
use crate::exchange::Scratch;
use crate::pipeline::Ring;
use crate::pipeline::ring::fill;
use crate::shared::{Place, SharedLayout};
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::math;

/// A ring of `S` stages for each of `WARPS` warps. Only the warp to which a ring belongs fills, awaits and
/// reads it. A stage has a part `T` and a part `X`.
pub struct PerWarp<T, const S: usize, const WARPS: usize, X = ()> {
    base: u32,
    what: PhantomData<(T, X)>,
}

// SAFETY: the layout has `WARPS` rings of each part, one after the other.
unsafe impl<T: SharedLayout, const S: usize, const WARPS: usize, X: SharedLayout> Place
    for PerWarp<T, S, WARPS, X>
{
    const BYTES: usize = {
        assert!(T::ALIGN.is_multiple_of(X::ALIGN), "the parts beside the stages are misaligned");
        WARPS * (<Ring<T, S, CpAsync<Warp>>>::BYTES + <Ring<X, S, CpAsync<Warp>>>::BYTES)
    };
    const ALIGN: usize = T::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        PerWarp { base, what: PhantomData }
    }
}

/// This warp's ring of a [`PerWarp`], with `S` empty stages.
pub struct OwnRing<T, const S: usize, const WARPS: usize, X = ()> {
    /// Address of the first warp's ring.
    all: u32,
    /// Address of this warp's ring.
    base: u32,
    what: PhantomData<(T, X)>,
}

/// A ring in use: all of its stages are in flight, except for the stage that the warp reads.
pub struct Stream<T, const S: usize, const WARPS: usize, X = ()> {
    /// Address of the first warp's ring.
    all: u32,
    /// Address of this warp's ring.
    base: u32,
    /// The next stage to read.
    next: u32,
    what: PhantomData<(T, X)>,
}

impl<T: SharedLayout, const S: usize, const WARPS: usize, X: SharedLayout> PerWarp<T, S, WARPS, X> {
    /// The address of the part `X` of the stage at address `at`. `all` is the first warp's ring.
    #[inline(always)]
    fn beside(all: u32, at: u32) -> u32 {
        let rings = (WARPS * <Ring<T, S, CpAsync<Warp>>>::BYTES) as u32;
        all + rings + (at - all) / T::BYTES as u32 * X::BYTES as u32
    }

    /// Starts the copies that fill the stage at address `at`, as one group.
    ///
    /// # Safety
    /// - The stage belongs to this warp, and no thread has a view of it.
    #[inline(always)]
    unsafe fn fill_stage(
        all: u32,
        at: u32,
        copy: impl FnOnce(&T::Slot<CpAsync<Warp>>, &X::Slot<CpAsync<Warp>>),
    ) {
        // SAFETY: the caller keeps the preconditions. Stages have different parts beside them.
        unsafe { fill::<T, CpAsync<Warp>>(at, |slot| copy(slot, &X::slot(Self::beside(all, at)))) }
    }

    /// The ring that belongs to this warp.
    #[inline(always)]
    pub fn own<K: Kernel>(self, block: &Block<K>) -> OwnRing<T, S, WARPS, X> {
        const { assert!(K::THREADS as usize == WARPS * 32, "each warp of the block must have a ring") }
        let base = self.base + block.warp().index * <Ring<T, S, CpAsync<Warp>>>::BYTES as u32;
        OwnRing { all: self.base, base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, const WARPS: usize, X: SharedLayout> OwnRing<T, S, WARPS, X> {
    /// Starts the copies of all stages, one group per stage.
    #[inline(always)]
    pub fn stream(
        self,
        mut copy: impl FnMut(&T::Slot<CpAsync<Warp>>, &X::Slot<CpAsync<Warp>>),
    ) -> Stream<T, S, WARPS, X> {
        // This loop is not unrolled: the unrolled code would take longer to fetch than to run.
        for i in 0..math::opaque(S as u32) {
            math::stay_a_loop();
            // SAFETY: stage `i` lies in this warp's part of the rings' shared memory, which belongs to `self`
            // alone; no thread has had a view of it yet.
            unsafe {
                PerWarp::<T, S, WARPS, X>::fill_stage(self.all, self.base + i * T::BYTES as u32, &mut copy)
            }
        }
        Stream { all: self.all, base: self.base, next: self.base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, const WARPS: usize, X: SharedLayout> Stream<T, S, WARPS, X> {
    /// Waits for the oldest stage and lets the warp `read` it. After all lanes have read the stage, `refill`
    /// starts copies to it. Every turn closes a group of copies. The group is empty if no copies remain.
    #[inline(always)]
    pub fn turn(
        &mut self,
        warp: &mut Warp,
        read: impl FnOnce(&T, &X, &mut Warp),
        refill: impl FnOnce(&T::Slot<CpAsync<Warp>>, &X::Slot<CpAsync<Warp>>),
    ) {
        let at = self.next;
        let last = self.base + (S as u32 - 1) * T::BYTES as u32;
        self.next = match S {
            1 => at,
            2 => self.base + last - at,
            _ if at == last => self.base,
            _ => at + T::BYTES as u32,
        };
        CpAsync::<Warp>::wait_all_but(S - 1);
        warp.sync();
        // SAFETY: this lane's copies have landed, and the barrier makes the other lanes' copies visible; the
        // views end with the call.
        let (stage, beside) = unsafe { (T::at(at), X::at(PerWarp::<T, S, WARPS, X>::beside(self.all, at))) };
        read(&stage, &beside, warp);
        warp.sync();
        // SAFETY: every lane has read the stage, and no view is left.
        unsafe { PerWarp::<T, S, WARPS, X>::fill_stage(self.all, at, refill) }
    }

    /// Turns the shared memory of all rings into scratch memory, after all copies have landed and every warp
    /// has given back its ring.
    #[inline(always)]
    pub fn reclaim<K: Kernel>(self, block: &mut Block<K>) -> Scratch<PerWarp<T, S, WARPS, X>> {
        CpAsync::<Warp>::wait_all();
        block.sync();
        // SAFETY: this is the shared memory of all rings. Each warp has consumed its ring, and only this
        // memory provides rings. No copy is in flight, and no view is left.
        unsafe { Scratch::new(self.all) }
    }
}
