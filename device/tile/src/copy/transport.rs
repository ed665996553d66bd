//! How copies travel, and which threads make them.
use crate::group::{ThreadGroup, sealed};
use core::marker::PhantomData;
use cuda_std::{cp_async, mbarrier};

/// How what fills a place travels there. A place, its slots and its ring name it as `By`, so that one is
/// never filled in another's way.
pub trait Transport: sealed::Sealed {
    /// Arrivals that end a phase of a stage's *full* barrier ([`crate::MbarrierPipeline`]).
    const ARRIVALS: u32;
    /// What the bytes of a [`crate::MbarrierPipeline`] are a multiple of.
    const ROUND: usize;
    /// Bytes that a stage of a [`crate::MbarrierPipeline`] has beside it.
    const INFO_BYTES: usize = 0;
}

/// A transport whose copies the threads of a group make.
pub trait GroupTransport: Transport {
    /// Who copies.
    type Group: ThreadGroup;

    /// Closes the group of copies that this thread has started.
    ///
    /// # Safety
    /// - Called once for each filling, by the place that is filled: groups are counted.
    unsafe fn commit();

    /// Waits until at most the `pending` youngest groups of this thread are under way.
    fn wait_all_but(pending: usize);

    /// Waits for all copies of this thread, those of no group as well.
    fn wait_all();

    /// Lets the barrier at `full` know when the copies that this thread has started have landed.
    ///
    /// # Safety
    /// - `full` has been initialised with [`Transport::ARRIVALS`], and its phase has not ended.
    unsafe fn arrive(full: u32);
}

/// By the threads of group `W`, 16 bytes each at a time (`cp.async`).
pub struct CpAsync<W>(PhantomData<W>);

impl<W> sealed::Sealed for CpAsync<W> {}
impl<W: ThreadGroup> Transport for CpAsync<W> {
    const ARRIVALS: u32 = W::THREADS;
    const ROUND: usize = 1;
}
impl<W: ThreadGroup> GroupTransport for CpAsync<W> {
    type Group = W;

    #[inline(always)]
    unsafe fn commit() {
        cp_async::commit_group()
    }

    #[inline(always)]
    fn wait_all_but(pending: usize) {
        // A constant after inlining.
        match pending {
            0 => cp_async::wait_group::<0>(),
            1 => cp_async::wait_group::<1>(),
            2 => cp_async::wait_group::<2>(),
            _ => cp_async::wait_group::<3>(),
        }
    }

    #[inline(always)]
    fn wait_all() {
        cp_async::wait_all()
    }

    #[inline(always)]
    unsafe fn arrive(full: u32) {
        // SAFETY: the caller's promise; every thread of the group arrives once.
        unsafe { mbarrier::cp_async_arrive_noinc(full) }
    }
}
