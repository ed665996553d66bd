//! Asynchronous copies: who may touch a place, and when.
//!
//! | state | who may touch it | how it is left |
//! |---|---|---|
//! | [`Unfilled`], [`Ring`] | nobody | `fill`, `prologue` |
//! | [`Vacant`] | every thread writes its share, by asynchronous copies | dropped: commits them as one group |
//! | [`InFlight`], a stage of [`Pipeline`] | nobody | `land`, `advance`: waits for the group, then a barrier |
//! | [`Ready`], what `land` returns | every thread reads | dropped, before the next `advance` |
//!
//! One barrier a stage does both: it shows each thread what the others have copied, and tells that everybody has left the stage before.
//! So `advance` hands out the stage to read and refills the one just left. Every `advance` commits a group, an empty one where there is
//! nothing left to copy: the number of groups in flight stays a constant, and when the last stage is handed out no copy is under way.
use crate::{Block, Scratch, SharedLayout};
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use cuda_std::cp_async;

/// A place that the block may write: every warp is done with it. Dropping it commits its copies as one group.
pub struct Vacant<'p, T: SharedLayout> {
    slot: T::Slot,
    place: PhantomData<&'p mut T>,
}

/// A place that the block may read: waited for, and behind a barrier.
pub struct Ready<'p, T> {
    view: T,
    place: PhantomData<&'p T>,
}

impl<T: SharedLayout> Ready<'_, T> {
    /// # Safety
    /// - As [`SharedLayout::at`], for as long as the lifetime lasts.
    #[inline(always)]
    pub(crate) unsafe fn at(base: u32) -> Self {
        // SAFETY: the caller's promise.
        Ready { view: unsafe { T::at(base) }, place: PhantomData }
    }
}
impl<T: SharedLayout> Vacant<'_, T> {
    /// # Safety
    /// - As [`SharedLayout::slot`].
    #[inline(always)]
    pub(crate) unsafe fn at(base: u32) -> Self {
        // SAFETY: the caller's promise.
        Vacant { slot: unsafe { T::slot(base) }, place: PhantomData }
    }
}
impl<T: SharedLayout> Drop for Vacant<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        cp_async::commit_group()
    }
}
impl<T: SharedLayout> Deref for Vacant<'_, T> {
    type Target = T::Slot;
    #[inline(always)]
    fn deref(&self) -> &T::Slot {
        &self.slot
    }
}
impl<T: SharedLayout> DerefMut for Vacant<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T::Slot {
        &mut self.slot
    }
}
impl<T> Deref for Ready<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.view
    }
}

/// A place outside the ring, filled once, before the ring.
pub struct Unfilled<T> {
    base: u32,
    what: PhantomData<T>,
}

/// What is on its way into such a place.
#[must_use = "what was copied can only be used once it has landed"]
pub struct InFlight<T> {
    base: u32,
    what: PhantomData<T>,
}

/// `S` stages, none filled.
pub struct Ring<T, const S: usize> {
    base: u32,
    what: PhantomData<T>,
}

/// `S` stages: `S - 1` in flight or read, one vacant.
pub struct Pipeline<T, const S: usize> {
    base: u32,
    /// The stage that is read next.
    read: u32,
    what: PhantomData<T>,
}

macro_rules! place {
    ([$($generics:tt)*] $place:ty, $copies:expr) => {
        impl<T: SharedLayout, $($generics)*> SharedLayout for $place {
            const BYTES: usize = $copies * T::BYTES;
            type Slot = ();
            #[inline(always)]
            unsafe fn at(base: u32) -> Self {
                Self { base, what: PhantomData }
            }
            #[inline(always)]
            unsafe fn slot(_: u32) {}
        }
    };
}
place!([] Unfilled<T>, 1);
place!([const S: usize] Ring<T, S>, S);

impl<T: SharedLayout> Unfilled<T> {
    /// Starts the copies that fill it, as one group.
    #[inline(always)]
    pub fn fill(self, fill: impl FnOnce(&mut Vacant<'_, T>)) -> InFlight<T> {
        // SAFETY: the place is this value's alone, and nobody has had a view of it yet.
        fill(&mut unsafe { Vacant::at(self.base) });
        InFlight { base: self.base, what: PhantomData }
    }
}

impl<T: SharedLayout> InFlight<T> {
    /// Waits for these copies only: the `S - 1` groups of the pipeline started after them stay in flight.
    #[inline(always)]
    pub fn land<U, K: Kernel, const S: usize>(self, _behind: &Pipeline<U, S>, block: &mut Block<K>) -> T {
        wait_all_but(S - 1);
        block.sync();
        // SAFETY: this thread's copies have landed, and the barrier shows it those of the others; `self` is consumed.
        unsafe { T::at(self.base) }
    }
}

impl<T: SharedLayout> InFlight<T> {
    /// Waits for these copies and all others of the block.
    #[inline(always)]
    pub fn land_alone<K: Kernel>(self, block: &mut Block<K>) -> T {
        wait_all_but(0);
        block.sync();
        // SAFETY: as in `land`.
        unsafe { T::at(self.base) }
    }
}

impl<T, const S: usize> Ring<T, S> {
    #[inline(always)]
    pub(crate) fn base(&self) -> u32 {
        self.base
    }
}

impl<T: SharedLayout, const S: usize> Ring<T, S> {
    /// Starts the first `S - 1` stages, one group each.
    #[inline(always)]
    pub fn prologue(self, mut fill: impl FnMut(u32, &mut Vacant<'_, T>)) -> Pipeline<T, S> {
        for i in 0..S as u32 - 1 {
            // SAFETY: stage `i` is this value's alone, and nobody has had a view of it yet.
            fill(i, &mut unsafe { Vacant::at(self.base + i * T::BYTES as u32) });
        }
        Pipeline { base: self.base, read: self.base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize> Pipeline<T, S> {
    /// Waits for the oldest stage, then a barrier: hands it out to read, and lets `refill` start copies into the stage that every warp has
    /// just left. With a single stage `refill` comes first and is waited for.
    #[inline(always)]
    pub fn advance<K: Kernel>(
        &mut self,
        block: &mut Block<K>,
        refill: impl FnOnce(&mut Vacant<'_, T>, &Block<K>),
    ) -> Ready<'_, T> {
        let (first, last) = (self.base, self.base + (S as u32 - 1) * T::BYTES as u32);
        let read = self.read;
        if S == 1 {
            block.sync();
            // SAFETY: the barrier tells that every warp has left the stage.
            refill(&mut unsafe { Vacant::at(read) }, block);
            wait_all_but(0);
            block.sync();
        } else {
            wait_all_but(S - 2);
            block.sync();
            let before = match S {
                2 => first + last - read,
                _ if read == first => last,
                _ => read - T::BYTES as u32,
            };
            self.read = match S {
                2 => before,
                _ if read == last => first,
                _ => read + T::BYTES as u32,
            };
            // SAFETY: the stage before `read` was handed out by the last `advance` (or never); `Ready` borrowed this pipeline, so no view of
            // it is left, and the barrier tells that no other warp has one.
            refill(&mut unsafe { Vacant::at(before) }, block);
        }
        // SAFETY: this thread's copies have landed, and the barrier shows it those of the others; the stage is refilled only by the next
        // `advance`, which the borrow in `Ready` puts off.
        unsafe { Ready::at(read) }
    }
}

impl<T: SharedLayout, const S: usize> Pipeline<T, S> {
    /// Its stages as scratch memory, once the last one has been read: a barrier tells that every warp has left them.
    #[inline(always)]
    pub fn reclaim<K: Kernel>(self, block: &mut Block<K>) -> Scratch<T, S> {
        block.sync();
        // SAFETY: the ring's place, which `self` alone stood for; no copy is under way, as the module says.
        unsafe { Scratch::new(self.base) }
    }
}

/// Waits until at most the `pending` youngest groups are under way. A constant after inlining.
#[inline(always)]
fn wait_all_but(pending: usize) {
    match pending {
        0 => cp_async::wait_group::<0>(),
        1 => cp_async::wait_group::<1>(),
        2 => cp_async::wait_group::<2>(),
        _ => cp_async::wait_group::<3>(),
    }
}
