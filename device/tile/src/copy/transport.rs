//! Transports. A transport says how copies reach shared memory, and which threads start them.
use crate::group::{ThreadGroup, sealed};
use core::marker::PhantomData;
use cuda_std::{cp_async, mbarrier};

/// The kind of copies that fill a place. A place, its slots and its ring name the transport in their type
/// (`By`), so no place can be filled in two ways.
pub trait Transport: sealed::Sealed {
    /// Number of arrivals that complete a phase of a stage's *full* barrier
    /// ([`MbarrierPipeline`](crate::pipeline::MbarrierPipeline)).
    const ARRIVALS: u32;
    /// Whether threads write a stage. Products read in another proxy, so a proxy fence stands between both.
    const BY_THREADS: bool;
    /// The size of an mbarrier pipeline is rounded up to a multiple of this number of bytes.
    const ROUND: usize;
    /// Number of bytes of broadcast tile info beside each stage.
    const INFO_BYTES: usize = 0;
}

/// A transport in which all threads of a group copy.
pub trait GroupTransport: Transport {
    /// The group of threads that copy.
    type Group: ThreadGroup;

    /// Closes a group of the copies that this thread has started.
    ///
    /// # Safety
    /// - The place calls this function once each time it is filled, because waits count groups.
    unsafe fn commit();

    /// Waits until at most the `pending` youngest groups of this thread are in flight.
    fn wait_all_but(pending: usize);

    /// Waits for all copies of this thread, whether a group is closed or not.
    fn wait_all();

    /// Arrives at the barrier `full` as soon as all copies that this thread has started have landed.
    ///
    /// # Safety
    /// - `full` is initialised with [`Transport::ARRIVALS`], and its phase has not completed.
    unsafe fn arrive(full: u32);
}

/// `cp.async` by the threads of group `W`: each thread copies 16 bytes at a time.
pub struct CpAsync<W>(PhantomData<W>);

impl<W> sealed::Sealed for CpAsync<W> {}
impl<W: ThreadGroup> Transport for CpAsync<W> {
    const ARRIVALS: u32 = W::THREADS;
    const BY_THREADS: bool = true;
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
        // `pending` is a constant after inlining.
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
        // SAFETY: the caller keeps the preconditions; every thread of the group arrives once.
        unsafe { mbarrier::cp_async_arrive_noinc(full) }
    }
}
