//! Stages that one warp fills and the others read, handed over by mbarriers.
//!
//! Stage `s` has two barriers. *Full* ends a phase when the copies of all lanes of the producer have landed: the copies themselves arrive, so
//! that the producer goes on to the next stage at once. *Empty* ends one when every thread of every consumer has left the stage.
//!
//! Both sides take the stages in the same order and count rounds through the ring by their parity. The `r`-th round's filling is phase `r` of
//! *full*, its leaving phase `r` of *empty*. The producer waits for the leaving of the round before, and in the first round for a phase
//! before the first, which counts as ended.
use crate::{Block, Crew, InFlight, Ring, SharedLayout, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::Deref;
use cuda_std::{cp_async, mbarrier};

/// `S` stages, none filled, and behind them the barriers that hand them over.
pub struct Relay<T, const S: usize> {
    ring: Ring<T, S>,
}

/// What a warp is, from [`Relay::specialise`] on.
pub enum Role<T, const S: usize> {
    /// The last warp of the block: it fills stages.
    Producer(Producer<T, S>),
    /// The other warps, numbered from 0: they read them.
    Consumer(Consumer<T, S>, Warp),
}

/// The producer warp as those who copy.
#[derive(Clone, Copy)]
pub struct ProducerCrew {
    lane: u32,
}

impl Crew for ProducerCrew {
    const THREADS: u32 = 32;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.lane
    }
}

/// The right to fill stages.
pub struct Producer<T, const S: usize> {
    turn: Turn<T, S>,
    warp: Warp,
}

/// The right to read stages.
pub struct Consumer<T, const S: usize> {
    turn: Turn<T, S>,
    warp: Warp,
}

/// A stage that its consumer may read until it is dropped.
pub struct Lent<'c, T> {
    view: T,
    empty: Barrier,
    consumer: PhantomData<&'c T>,
}

/// A barrier of a stage.
#[derive(Clone, Copy)]
struct Barrier {
    address: u32,
}

impl Barrier {
    /// Waits for the end of the phase of this parity. Every lane has seen it, and the warp leaves together.
    #[inline(always)]
    fn wait(self, parity: u32, warp: Warp) {
        // SAFETY: `specialise` has initialised it, and a barrier of the block came after.
        while warp.any(!unsafe { mbarrier::test_wait_parity(self.address, parity) }) {}
    }
}

/// The stage that comes next, and in which round.
struct Turn<T, const S: usize> {
    base: u32,
    stage: u32,
    parity: u32,
    what: PhantomData<T>,
}

impl<T: SharedLayout, const S: usize> Turn<T, S> {
    #[inline(always)]
    fn first(base: u32) -> Self {
        Turn { base, stage: 0, parity: 0, what: PhantomData }
    }
    #[inline(always)]
    fn address(&self) -> u32 {
        self.base + self.stage * T::BYTES as u32
    }
    #[inline(always)]
    fn full(&self) -> Barrier {
        Barrier { address: self.base + (S * T::BYTES) as u32 + self.stage * (2 * mbarrier::BYTES) as u32 }
    }
    #[inline(always)]
    fn empty(&self) -> Barrier {
        Barrier { address: self.full().address + mbarrier::BYTES as u32 }
    }
    #[inline(always)]
    fn advance(&mut self) {
        let last = self.stage == S as u32 - 1;
        self.parity ^= last as u32;
        self.stage = if last { 0 } else { self.stage + 1 };
    }
}

impl<T: SharedLayout, const S: usize> SharedLayout for Relay<T, S> {
    const BYTES: usize = S * (T::BYTES + 2 * mbarrier::BYTES);
    type Slot = ();
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        const { assert!(T::BYTES.is_multiple_of(mbarrier::BYTES), "barriers are aligned") }
        // SAFETY: the first part of what the caller promises.
        Relay { ring: unsafe { Ring::at(base) } }
    }
    #[inline(always)]
    unsafe fn slot(_: u32) {}
}

impl<T: SharedLayout, const S: usize> Relay<T, S> {
    /// Lands `first`, what all warps have started copying, and splits the block into its last warp, which fills the stages, and the others,
    /// which read them. No barrier of the whole block comes after: the block is gone.
    #[inline(always)]
    pub fn specialise<U: SharedLayout, K: Kernel>(self, first: InFlight<U>, mut block: Block<K>) -> (U, Role<T, S>) {
        let mut turn = Turn::<T, S>::first(self.ring.base());
        if block.member() == 0 {
            for _ in 0..S {
                // SAFETY: the bytes behind the stages, which `self` stood for; one thread, and the barrier in `land_alone` follows.
                unsafe {
                    mbarrier::init(turn.full().address, ProducerCrew::THREADS);
                    mbarrier::init(turn.empty().address, K::THREADS - ProducerCrew::THREADS);
                }
                turn.advance();
            }
        }
        let (landed, warp) = (first.land_alone(&mut block), block.warp());
        let turn = Turn::first(self.ring.base());
        let role = if warp.index == K::THREADS / 32 - 1 {
            Role::Producer(Producer { turn, warp })
        } else {
            Role::Consumer(Consumer { turn, warp }, warp)
        };
        (landed, role)
    }
}

impl<T: SharedLayout, const S: usize> Producer<T, S> {
    /// Who copies.
    #[inline(always)]
    pub fn crew(&self) -> ProducerCrew {
        ProducerCrew { lane: self.warp.lane }
    }

    /// Waits until the next stage is empty and starts its copies. They hand it over when they have landed.
    #[inline(always)]
    pub fn produce(&mut self, fill: impl FnOnce(&mut T::Slot)) {
        self.turn.empty().wait(self.turn.parity ^ 1, self.warp);
        // SAFETY: no consumer has a view of the stage: none has had one yet, or all have said that they left it.
        fill(&mut unsafe { T::slot(self.turn.address()) });
        // SAFETY: every lane of the producer arrives once a phase, which has not ended: this is its filling.
        unsafe { mbarrier::cp_async_arrive_noinc(self.turn.full().address) }
        self.turn.advance();
    }

    /// Stays until the last copies have landed: PTX does not say what becomes of the copies of a thread that is gone.
    #[inline(always)]
    pub fn finish(self) {
        cp_async::wait_all();
    }
}

impl<T: SharedLayout, const S: usize> Consumer<T, S> {
    /// Waits for the next stage.
    #[inline(always)]
    pub fn wait(&mut self) -> Lent<'_, T> {
        self.turn.full().wait(self.turn.parity, self.warp);
        // SAFETY: the producer's copies have landed, which every lane has seen; it refills the stage only after all have dropped this.
        let (view, empty) = (unsafe { T::at(self.turn.address()) }, self.turn.empty());
        self.turn.advance();
        Lent { view, empty, consumer: PhantomData }
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.view
    }
}

impl<T> Drop for Lent<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: every consumer thread arrives once a phase, which cannot have ended without it.
        unsafe { mbarrier::arrive(self.empty.address) }
    }
}
