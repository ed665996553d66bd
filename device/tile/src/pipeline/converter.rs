//! A stage in flight as it is stored, and the stage before it, converted to the operands' type.
//!
//! Each `advance` has two barriers. The first makes every thread's copies visible, and proves that every
//! thread has left the converted stage. The second makes the converted stage visible, and proves that every
//! thread has read the stored stage. Copies therefore refill it while the group reads the converted one.
use crate::copy::GroupTransport;
use crate::group::sealed::Synchronize;
use crate::pipeline::Ready;
use crate::pipeline::ring::fill;
use crate::shared::{Place, SharedLayout, Stores};
use core::marker::PhantomData;

/// The places of a stored stage `S` and of a converted stage `T`.
pub struct Conversion<S, T, By> {
    base: u32,
    what: PhantomData<(S, T, By)>,
}

/// A stored stage in flight, and a converted stage.
pub struct Converter<S, T, By> {
    base: u32,
    what: PhantomData<(S, T, By)>,
}

// SAFETY: the bytes of a `T` and of an `S`, which no thread sees before they are filled.
unsafe impl<S: SharedLayout, T: SharedLayout, By> Place for Conversion<S, T, By> {
    const BYTES: usize = {
        assert!(T::BYTES.is_multiple_of(S::ALIGN), "the stored stage is misaligned");
        T::BYTES + S::BYTES
    };
    const ALIGN: usize = if S::ALIGN > T::ALIGN { S::ALIGN } else { T::ALIGN };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Conversion { base, what: PhantomData }
    }
}

impl<S: SharedLayout, T: SharedLayout, By: GroupTransport> Conversion<S, T, By> {
    /// Starts the copies of the first stage, as one group.
    #[inline(always)]
    pub fn start(self, copy: impl FnOnce(&S::Slot<By>)) -> Converter<S, T, By> {
        let stages = Converter { base: self.base, what: PhantomData };
        // SAFETY: the place is this value's alone, and no thread has had a view of it yet.
        unsafe { fill::<S, By>(stages.stored(), copy) }
        stages
    }
}

impl<S: SharedLayout, T: SharedLayout, By: GroupTransport> Converter<S, T, By> {
    /// Shared address of the stored stage.
    #[inline(always)]
    fn stored(&self) -> u32 {
        self.base + T::BYTES as u32
    }

    /// Waits for the stage in flight and lets `convert` convert the thread's share. Behind a barrier, lets
    /// `refill` start copies to the stored stage, and returns the converted one.
    #[inline(always)]
    pub fn advance(
        &mut self,
        group: &mut By::Group,
        convert: impl FnOnce(&T::Slot<Stores<By::Group>>, &S, &By::Group),
        refill: impl FnOnce(&S::Slot<By>, &By::Group),
    ) -> Ready<'_, T> {
        By::wait_all_but(0);
        group.sync_group();
        // SAFETY: this thread's copies have landed, and the barrier makes the other threads' copies visible.
        // The last `advance` returned the converted stage; `Ready` borrowed `self`, so this thread has no
        // view of it, and the barrier proves that no other thread has one.
        unsafe { convert(&T::slot(self.base), &S::at(self.stored()), group) }
        group.sync_group();
        // SAFETY: the barrier proves that every thread has read the stored stage; `convert` cannot keep its
        // view.
        unsafe { fill::<S, By>(self.stored(), |slot| refill(slot, group)) }
        // SAFETY: the barrier makes every thread's stores visible. Only the next `advance` writes the stage,
        // and it cannot run while `Ready` borrows `self`.
        unsafe { Ready::at(self.base) }
    }
}
