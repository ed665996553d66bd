//! Asynchronous copies: who may touch a place, and when.
//!
//! | state | who may touch it | how it is left |
//! |---|---|---|
//! | [`Unfilled`], [`Ring`] | nobody | `fill`, `prologue` |
//! | a slot | every thread of the crew writes its share | at the closure's end: its copies are one group |
//! | [`InFlight`], a stage of [`Pipeline`] | nobody | `land`, `advance`: waits for the group, then meets |
//! | [`Ready`], what `land` returns | every thread of the crew reads | dropped, before the next `advance` |
//!
//! One meeting of the crew a stage does both: it shows each thread what the others have copied, and tells
//! that everybody has left the stage before. So `advance` hands out the stage to read and refills the one
//! just left. Every `advance` commits a group, an empty one where there is nothing left to copy: the number
//! of groups in flight stays a constant. Groups of other pipelines between only make a wait longer.
use crate::crew::sealed::Meet;
use crate::{Block, CpAsync, CrewTransport, Place, Scratch, SharedLayout, Transport};
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::Deref;

/// A place that the crew may read: waited for, and behind a meeting.
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
impl<T> Deref for Ready<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.view
    }
}

/// A place outside the ring, filled once, before the ring.
pub struct Unfilled<T, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

/// What is on its way into such a place.
#[must_use = "what was copied can only be used once it has landed"]
pub struct InFlight<T, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

/// `S` stages, none filled.
pub struct Ring<T, const S: usize, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

/// What is on its way before a ring, and the ring's first stages behind it.
#[must_use = "what was copied can only be used once it has landed"]
pub struct Prologue<U, T, const S: usize, By> {
    lead: InFlight<U, By>,
    kept: Pipeline<T, S, By>,
}

/// `S` stages: `S - 1` in flight or read, one vacant.
pub struct Pipeline<T, const S: usize, By> {
    base: u32,
    /// The stage that is read next.
    read: u32,
    /// The stage that was read last, or never: vacant behind the next meeting.
    left: u32,
    what: PhantomData<(T, By)>,
}

// SAFETY: the bytes of one `T`, which nobody sees before it is filled.
unsafe impl<T: SharedLayout, By: Transport> Place for Unfilled<T, By> {
    const BYTES: usize = T::BYTES;
    const ALIGN: usize = T::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Unfilled { base, what: PhantomData }
    }
}

// SAFETY: the bytes of `S` of `T`, which nobody sees before they are filled.
unsafe impl<T: SharedLayout, const S: usize, By: Transport> Place for Ring<T, S, By> {
    const BYTES: usize = {
        assert!(S > 0, "a ring has a stage");
        assert!(T::BYTES.is_multiple_of(T::ALIGN), "stages follow each other");
        S * T::BYTES
    };
    const ALIGN: usize = T::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Ring { base, what: PhantomData }
    }
}

/// Starts the copies that fill the place at `base`, as one group.
///
/// # Safety
/// - As [`SharedLayout::slot`]; nobody has a view of the place.
#[inline(always)]
pub(crate) unsafe fn fill<T: SharedLayout, By: CrewTransport>(base: u32, copy: impl FnOnce(&T::Slot<By>)) {
    // SAFETY: the caller's promise; one filling, one group.
    unsafe {
        copy(&T::slot(base));
        By::commit()
    }
}

impl<T: SharedLayout, By: CrewTransport> Unfilled<T, By> {
    /// Starts the copies that fill it, as one group.
    #[inline(always)]
    pub fn fill(self, copy: impl FnOnce(&T::Slot<By>)) -> InFlight<T, By> {
        // SAFETY: the place is this value's alone, and nobody has had a view of it yet.
        unsafe { fill::<T, By>(self.base, copy) }
        InFlight { base: self.base, what: PhantomData }
    }
}

impl<T: SharedLayout, By: CrewTransport> InFlight<T, By> {
    /// Waits for these copies and all others of the crew.
    #[inline(always)]
    pub fn land(self, crew: &mut By::Crew) -> T {
        self.land_before(0, crew)
    }

    /// Waits for these copies: the `younger` groups that were started after them may stay in flight.
    #[inline(always)]
    fn land_before(self, younger: usize, crew: &mut By::Crew) -> T {
        By::wait_all_but(younger);
        crew.meet();
        // SAFETY: this thread's copies have landed, and the meeting shows it those of the others; `self` is
        // consumed.
        unsafe { T::at(self.base) }
    }
}

impl<T: SharedLayout, const S: usize, By: CrewTransport> Ring<T, S, By> {
    /// Starts the first `S - 1` stages, one group each, behind `lead`.
    #[inline(always)]
    pub fn prologue<U>(
        self,
        lead: InFlight<U, By>,
        copy: impl FnMut(u32, &T::Slot<By>),
    ) -> Prologue<U, T, S, By> {
        Prologue { lead, kept: self.start(copy) }
    }

    /// Starts the first `S - 1` stages, one group each.
    #[inline(always)]
    pub fn start(self, mut copy: impl FnMut(u32, &T::Slot<By>)) -> Pipeline<T, S, By> {
        for i in 0..S as u32 - 1 {
            // SAFETY: stage `i` is this value's alone, and nobody has had a view of it yet.
            unsafe { fill::<T, By>(self.base + i * T::BYTES as u32, |slot| copy(i, slot)) }
        }
        let left = self.base + (S as u32 - 1) * T::BYTES as u32;
        Pipeline { base: self.base, read: self.base, left, what: PhantomData }
    }
}

impl<U: SharedLayout, T: SharedLayout, const S: usize, By: CrewTransport> Prologue<U, T, S, By> {
    /// Waits for what came first; the stages stay in flight.
    #[inline(always)]
    pub fn land(self, crew: &mut By::Crew) -> (U, Pipeline<T, S, By>) {
        (self.lead.land_before(S - 1, crew), self.kept)
    }
}

impl<T: SharedLayout, const S: usize, By: CrewTransport> Pipeline<T, S, By> {
    /// Waits for the oldest stage and meets: hands it out to read, and lets `refill` start copies into the
    /// stage that everybody has just left. With a single stage `refill` comes first and is waited for.
    #[inline(always)]
    pub fn advance(
        &mut self,
        crew: &mut By::Crew,
        refill: impl FnOnce(&T::Slot<By>, &By::Crew),
    ) -> Ready<'_, T> {
        let read = self.read;
        if S == 1 {
            crew.meet();
            // SAFETY: the meeting tells that everybody has left the stage.
            unsafe { fill::<T, By>(read, |slot| refill(slot, crew)) }
            By::wait_all_but(0);
            crew.meet();
        } else {
            By::wait_all_but(S - 2);
            crew.meet();
            let vacant = core::mem::replace(&mut self.left, read);
            self.read = match S {
                2 => vacant,
                _ if read == self.base + (S as u32 - 1) * T::BYTES as u32 => self.base,
                _ => read + T::BYTES as u32,
            };
            // SAFETY: the stage before `read` was handed out by the last `advance` (or never); `Ready`
            // borrowed this pipeline, so no view of it is left, and the meeting tells that nobody else has
            // one.
            unsafe { fill::<T, By>(vacant, |slot| refill(slot, crew)) }
        }
        // SAFETY: this thread's copies have landed, and the meeting shows it those of the others; the stage
        // is refilled only by the next `advance`, which the borrow in `Ready` puts off.
        unsafe { Ready::at(read) }
    }
}

impl<T: SharedLayout, const S: usize, K: Kernel> Pipeline<T, S, CpAsync<Block<K>>> {
    /// Its stages as scratch memory: waits for what is still on its way, and until every warp has left them.
    #[inline(always)]
    pub fn reclaim(self, block: &mut Block<K>) -> Scratch<Ring<T, S, CpAsync<Block<K>>>> {
        CpAsync::<Block<K>>::wait_all();
        block.sync();
        // SAFETY: the ring's place, which `self` alone stood for; no copy is under way, and no view is left.
        unsafe { Scratch::new(self.base) }
    }
}
