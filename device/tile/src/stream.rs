//! Stages that a crew refills as soon as it has read them: all of them are in flight while it waits.
//!
//! [`crate::Pipeline`] refills the stage before the one it hands out, for one meeting a stage, where meeting
//! costs the whole block. A warp meets for next to nothing: here the stage that has been read is refilled at
//! once, and none is ever idle. Both uses of a stage are closures, so that no view outlives its turn.
use crate::crew::sealed::Meet;
use crate::pipeline::fill;
use crate::place::Lent;
use crate::{Block, CpAsync, CrewTransport, PerWarp, Ring, Scratch, SharedLayout, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::math;

/// `S` stages, all in flight but the one that is being read.
pub struct Stream<T, const S: usize, By> {
    base: u32,
    /// The stage that is read next.
    next: u32,
    what: PhantomData<(T, By)>,
}

impl<T: SharedLayout, const S: usize, By: CrewTransport> Ring<T, S, By> {
    /// Starts all stages, one group each.
    #[inline(always)]
    pub fn stream(self, mut copy: impl FnMut(&T::Slot<By>)) -> Stream<T, S, By> {
        // A loop that stays one: the code of so many copies would take longer to fetch than to run.
        for i in 0..math::opaque(S as u32) {
            math::stay_a_loop();
            // SAFETY: stage `i` is this value's alone, and nobody has had a view of it yet.
            unsafe { fill::<T, By>(self.base + i * T::BYTES as u32, &mut copy) }
        }
        Stream { base: self.base, next: self.base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, By: CrewTransport> Stream<T, S, By> {
    /// Waits for the oldest stage, lets the crew `read` it, and when all have, `refill` starts copies to it.
    /// Every turn commits a group, an empty one where there is nothing left to copy.
    #[inline(always)]
    pub fn turn(
        &mut self,
        crew: &mut By::Crew,
        read: impl FnOnce(&T, &mut By::Crew),
        refill: impl FnOnce(&T::Slot<By>),
    ) {
        let at = self.next;
        let last = self.base + (S as u32 - 1) * T::BYTES as u32;
        self.next = match S {
            1 => at,
            2 => self.base + last - at,
            _ if at == last => self.base,
            _ => at + T::BYTES as u32,
        };
        By::wait_all_but(S - 1);
        crew.meet();
        // SAFETY: this thread's copies have landed, and the meeting shows it those of the others; the view
        // ends with the call.
        read(&unsafe { T::at(at) }, crew);
        crew.meet();
        // SAFETY: every member has read the stage, and no view is left.
        unsafe { fill::<T, By>(at, refill) }
    }
}

impl<T: SharedLayout, const S: usize, const WARPS: usize> Lent<T, S, WARPS> {
    /// Every warp gives back its ring: waits for what is still on its way, and until all have.
    #[inline(always)]
    pub fn reclaim<K: Kernel>(
        self,
        mine: Stream<T, S, CpAsync<Warp>>,
        block: &mut Block<K>,
    ) -> Scratch<PerWarp<T, S, WARPS>> {
        debug_assert!(mine.base == self.mine(block), "another place's ring");
        CpAsync::<Warp>::wait_all();
        block.sync();
        // SAFETY: the place of all rings; each warp has consumed its own, which it had from here alone. No
        // copy is under way, and no view is left.
        unsafe { Scratch::new(self.base) }
    }
}
