//! Stages that a thread group fills with `cp.async` and then reads.
//!
//! | state | access | left by |
//! |---|---|---|
//! | [`Unfilled`], [`Ring`] | none | `fill`, `prologue` |
//! | a slot | each thread of the group writes its share | the end of the closure, which commits the copies |
//! | [`InFlight`], a stage of [`Pipeline`] | none | `land`, `advance`: wait for the copies, then a barrier |
//! | [`Ready`], the result of `land` | the group's threads read | a drop, before the next `advance` |
//!
//! One barrier per stage serves two purposes: it makes each thread's copies visible to the other threads, and
//! it proves that every thread has left the previous stage. Therefore `advance` returns the next stage and
//! refills the previous one. Every `advance` closes one group of copies, so the number of groups in flight is
//! constant. The group is empty if no copies remain. If another pipeline closes groups in between, a wait
//! only takes longer.
use crate::Block;
use crate::copy::{CpAsync, GroupTransport, Transport};
use crate::exchange::Scratch;
use crate::group::sealed::Synchronize;
use crate::shared::{Place, SharedLayout};
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::Deref;

/// A stage that the group may read, because its copies have landed and a barrier has passed.
pub struct Ready<'p, T> {
    view: T,
    place: PhantomData<&'p T>,
}

impl<T: SharedLayout> Ready<'_, T> {
    /// # Safety
    /// - The preconditions of [`SharedLayout::at`] hold as long as the lifetime lasts.
    #[inline(always)]
    pub(crate) unsafe fn at(base: u32) -> Self {
        // SAFETY: the caller keeps the preconditions.
        Ready { view: unsafe { T::at(base) }, place: PhantomData }
    }
}
impl<T> Deref for Ready<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.view
    }
}

/// Shared memory outside of the ring, which is filled once, before the ring.
pub struct Unfilled<T, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

/// Shared memory whose copies are in flight.
#[must_use = "the copies can be used only after they have landed"]
pub struct InFlight<T, By> {
    pub(crate) base: u32,
    what: PhantomData<(T, By)>,
}

/// `S` empty stages.
pub struct Ring<T, const S: usize, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

/// Shared memory whose copies are in flight, and the first stages of a ring. The copies of the stages were
/// started after the copies of this memory.
#[must_use = "the copies can be used only after they have landed"]
pub struct Prologue<U, T, const S: usize, By> {
    lead: InFlight<U, By>,
    kept: Pipeline<T, S, By>,
}

/// A pipeline of `S` stages: `S - 1` of them are in flight or being read, and one is vacant.
pub struct Pipeline<T, const S: usize, By> {
    base: u32,
    /// The address of the next stage to read.
    read: u32,
    /// The address of the stage that was read last, if there is one. This stage is vacant after the next
    /// barrier.
    left: u32,
    what: PhantomData<(T, By)>,
}

// SAFETY: the layout has the bytes of one `T`, which no thread sees before they are filled.
unsafe impl<T: SharedLayout, By: Transport> Place for Unfilled<T, By> {
    const BYTES: usize = T::BYTES;
    const ALIGN: usize = T::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Unfilled { base, what: PhantomData }
    }
}

// SAFETY: the layout has the bytes of `S` values of `T`, which no thread sees before they are filled.
unsafe impl<T: SharedLayout, const S: usize, By: Transport> Place for Ring<T, S, By> {
    const BYTES: usize = {
        assert!(S > 0, "a ring must have a stage");
        assert!(T::BYTES.is_multiple_of(T::ALIGN), "a stage must end at a multiple of its alignment");
        S * T::BYTES
    };
    const ALIGN: usize = T::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Ring { base, what: PhantomData }
    }
}

/// Starts the copies that fill the memory at `base`, as one group.
///
/// # Safety
/// - The preconditions of [`SharedLayout::slot`] hold, and no thread has a view of this memory.
#[inline(always)]
pub(crate) unsafe fn fill<T: SharedLayout, By: GroupTransport>(base: u32, copy: impl FnOnce(&T::Slot<By>)) {
    // SAFETY: the caller keeps the preconditions; each filling is one group.
    unsafe {
        copy(&T::slot(base));
        By::commit()
    }
}

impl<T: SharedLayout, By: GroupTransport> Unfilled<T, By> {
    /// Starts the copies that fill this memory, as one group.
    #[inline(always)]
    pub fn fill(self, copy: impl FnOnce(&T::Slot<By>)) -> InFlight<T, By> {
        // SAFETY: the memory belongs to this value alone, and no thread has had a view of it yet.
        unsafe { fill::<T, By>(self.base, copy) }
        InFlight { base: self.base, what: PhantomData }
    }
}

impl<T: SharedLayout, By: GroupTransport> InFlight<T, By> {
    /// Waits for these copies and all other copies of the group's threads.
    #[inline(always)]
    pub fn land(self, group: &mut By::Group) -> T {
        self.land_before(0, group)
    }

    /// Waits for these copies. The `younger` groups that were started later may stay in flight.
    #[inline(always)]
    fn land_before(self, younger: usize, group: &mut By::Group) -> T {
        By::wait_all_but(younger);
        group.sync_group();
        // SAFETY: this thread's copies have landed, and the barrier makes the other threads' copies visible.
        // `self` is consumed.
        unsafe { T::at(self.base) }
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport> Ring<T, S, By> {
    /// Starts the copies of the first `S - 1` stages after `lead`, one group per stage.
    #[inline(always)]
    pub fn prologue<U>(
        self,
        lead: InFlight<U, By>,
        copy: impl FnMut(u32, &T::Slot<By>),
    ) -> Prologue<U, T, S, By> {
        Prologue { lead, kept: self.start(copy) }
    }

    /// Starts the copies of the first `S - 1` stages, one group per stage.
    #[inline(always)]
    pub fn start(self, mut copy: impl FnMut(u32, &T::Slot<By>)) -> Pipeline<T, S, By> {
        for i in 0..S as u32 - 1 {
            // SAFETY: stage `i` belongs to this value alone, and no thread has had a view of it yet.
            unsafe { fill::<T, By>(self.base + i * T::BYTES as u32, |slot| copy(i, slot)) }
        }
        let left = self.base + (S as u32 - 1) * T::BYTES as u32;
        Pipeline { base: self.base, read: self.base, left, what: PhantomData }
    }
}

impl<U: SharedLayout, T: SharedLayout, const S: usize, By: GroupTransport> Prologue<U, T, S, By> {
    /// Waits for the memory that was filled first. The copies of the stages stay in flight.
    #[inline(always)]
    pub fn land(self, group: &mut By::Group) -> (U, Pipeline<T, S, By>) {
        (self.lead.land_before(S - 1, group), self.kept)
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport> Pipeline<T, S, By> {
    /// Waits for the oldest stage and for a barrier. Lets `refill` start copies to the stage that all threads
    /// have just left, and returns the oldest stage. If there is a single stage, `refill` runs first, and the
    /// call waits for its copies.
    #[inline(always)]
    pub fn advance(
        &mut self,
        group: &mut By::Group,
        refill: impl FnOnce(&T::Slot<By>, &By::Group),
    ) -> Ready<'_, T> {
        let read = self.read;
        if S == 1 {
            group.sync_group();
            // SAFETY: the barrier proves that every thread has left the stage.
            unsafe { fill::<T, By>(read, |slot| refill(slot, group)) }
            By::wait_all_but(0);
            group.sync_group();
        } else {
            By::wait_all_but(S - 2);
            group.sync_group();
            let vacant = core::mem::replace(&mut self.left, read);
            self.read = match S {
                2 => vacant,
                _ if read == self.base + (S as u32 - 1) * T::BYTES as u32 => self.base,
                _ => read + T::BYTES as u32,
            };
            // SAFETY: the last `advance`, if any, returned the stage before `read`. `Ready` borrowed this
            // pipeline, so this thread has no view of that stage. Since the barrier, no other thread has
            // a view of the stage.
            unsafe { fill::<T, By>(vacant, |slot| refill(slot, group)) }
        }
        // SAFETY: this thread's copies have landed, and the barrier makes the other threads' copies visible.
        // Only the next `advance` refills the stage, and it cannot run while `Ready` borrows the pipeline.
        unsafe { Ready::at(read) }
    }
}

impl<T: SharedLayout, const S: usize, K: Kernel> Pipeline<T, S, CpAsync<Block<K>>> {
    /// Turns the stages into scratch memory, after all copies have landed and every warp has left the stages.
    #[inline(always)]
    pub fn reclaim(self, block: &mut Block<K>) -> Scratch<Ring<T, S, CpAsync<Block<K>>>> {
        CpAsync::<Block<K>>::wait_all();
        block.sync();
        // SAFETY: `self` owned the ring's place and is consumed. No copy is in flight, and no view is left.
        unsafe { Scratch::new(self.base) }
    }
}
