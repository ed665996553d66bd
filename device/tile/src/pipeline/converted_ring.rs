//! Stages in flight as they are stored, and one stage that the group has converted to the operands' type.
//!
//! Each `advance` has two barriers. The first is the ring's: it also proves that every thread has left the
//! converted stage. The second makes the converted stage visible. Copies refill the ring during the
//! conversion.
use crate::Block;
use crate::copy::{CpAsync, GroupTransport};
use crate::exchange::Scratch;
use crate::group::sealed::Synchronize;
use crate::pipeline::{Pipeline, Ready, Ring};
use crate::shared::{Place, SharedLayout, Stores};
use contract::Kernel;
use core::marker::PhantomData;

/// The places of a ring of `N` stored stages `S` and of a converted stage `T`.
pub struct ConvertedRing<S, T, const N: usize, By> {
    base: u32,
    what: PhantomData<(S, T, By)>,
}

/// Stored stages in flight, and a converted stage.
pub struct ConvertedStages<S, T, const N: usize, By> {
    stored: Pipeline<S, N, By>,
    /// Shared address of the converted stage.
    converted: u32,
    what: PhantomData<T>,
}

// SAFETY: the bytes of a `T` and of `N` values of `S`, which no thread sees before they are filled.
unsafe impl<S: SharedLayout, T: SharedLayout, const N: usize, By: GroupTransport> Place
    for ConvertedRing<S, T, N, By>
{
    const BYTES: usize = {
        assert!(T::BYTES.is_multiple_of(S::ALIGN), "the stored stages are misaligned");
        T::BYTES + Ring::<S, N, By>::BYTES
    };
    const ALIGN: usize = if S::ALIGN > T::ALIGN { S::ALIGN } else { T::ALIGN };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        ConvertedRing { base, what: PhantomData }
    }
}

impl<S: SharedLayout, T: SharedLayout, const N: usize, By: GroupTransport> ConvertedRing<S, T, N, By> {
    /// Starts the copies of the first `N - 1` stages, one group per stage.
    #[inline(always)]
    pub fn start(self, copy: impl FnMut(u32, &S::Slot<By>)) -> ConvertedStages<S, T, N, By> {
        const { assert!(N > 1, "the ring's barrier must precede the conversion") }
        // SAFETY: the stored stages lie behind the converted one, in this value's place.
        let ring = unsafe { Ring::<S, N, By>::at(self.base + T::BYTES as u32) };
        ConvertedStages { stored: ring.start(copy), converted: self.base, what: PhantomData }
    }
}

impl<S: SharedLayout, T: SharedLayout, const N: usize, By: GroupTransport> ConvertedStages<S, T, N, By> {
    /// Waits for the oldest stored stage. Lets `refill` start copies to the stored stage that all threads
    /// have left, and lets `convert` convert the thread's share of the oldest one. Returns the converted
    /// stage.
    #[inline(always)]
    pub fn advance(
        &mut self,
        group: &mut By::Group,
        refill: impl FnOnce(&S::Slot<By>, &By::Group),
        convert: impl FnOnce(&T::Slot<Stores<By::Group>>, &S, &By::Group),
    ) -> Ready<'_, T> {
        let stored = self.stored.advance(group, refill);
        // SAFETY: the last `advance` returned the converted stage; `Ready` borrowed `self`, so this thread
        // has no view of it, and the ring's barrier proves that no other thread has one.
        unsafe { convert(&T::slot(self.converted), &stored, group) }
        group.sync_group();
        // SAFETY: the barrier makes every thread's stores visible. Only the next `advance` writes the stage,
        // and it cannot run while `Ready` borrows `self`.
        unsafe { Ready::at(self.converted) }
    }
}

impl<S: SharedLayout, T: SharedLayout, const N: usize, K: Kernel>
    ConvertedStages<S, T, N, CpAsync<Block<K>>>
{
    /// Turns all stages into scratch memory, after all copies have landed and every warp has left them.
    #[inline(always)]
    pub fn reclaim(self, block: &mut Block<K>) -> Scratch<ConvertedRing<S, T, N, CpAsync<Block<K>>>> {
        CpAsync::<Block<K>>::wait_all();
        block.sync();
        // SAFETY: `self` owned the place and is consumed. No copy is in flight, and no view is left.
        unsafe { Scratch::new(self.converted) }
    }
}
