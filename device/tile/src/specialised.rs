//! Stages that one warp fills and the others read, handed over by named barriers.
//!
//! Stage `s` has two barriers, at which the whole block meets: *full* (the producer comes when its copies have landed) and *empty* (consumers
//! come when they have left, the producer before it refills). Both sides meet in the same order, full 0, empty 0, full 1, .., and the
//! producer is always there first, so that nobody waits who need not. No *empty* where no refill will come.
//!
//! Both sides use `bar.sync`: with `bar.arrive` on the side that need not wait, compute-sanitizer's racecheck does not see the order.
use crate::{Block, Crew, Ring, SharedLayout, Vacant, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::Deref;
use cuda_std::{barrier, cp_async};

/// What a warp is, from [`Ring::specialise`] on.
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
    ring: Handover<T, S>,
    crew: ProducerCrew,
    /// Stages filled so far.
    filled: u32,
}

/// The right to read stages.
pub struct Consumer<T, const S: usize> {
    ring: Handover<T, S>,
}

/// A stage that its consumer may read until it is dropped.
pub struct Lent<'c, T> {
    view: T,
    /// The empty barrier and how many threads it counts; none where no refill will come.
    release: Option<[u32; 2]>,
    consumer: PhantomData<&'c T>,
}

/// Where both ends stand.
struct Handover<T, const S: usize> {
    base: u32,
    /// The stage that comes next.
    stage: u32,
    threads: u32,
    what: PhantomData<T>,
}

impl<T: SharedLayout, const S: usize> Handover<T, S> {
    #[inline(always)]
    fn full(stage: u32) -> u32 {
        1 + stage
    }
    #[inline(always)]
    fn empty(stage: u32) -> u32 {
        1 + S as u32 + stage
    }
    #[inline(always)]
    fn address(&self) -> u32 {
        self.base + self.stage * T::BYTES as u32
    }
    #[inline(always)]
    fn advance(&mut self) {
        self.stage = if self.stage + 1 == S as u32 { 0 } else { self.stage + 1 };
    }
}

impl<T: SharedLayout, const S: usize> Ring<T, S> {
    /// Splits the block into its last warp, which fills the stages, and the others, which read them. No barrier of the whole block comes
    /// after: the block is gone.
    #[inline(always)]
    pub fn specialise<K: Kernel>(self, block: Block<K>) -> Role<T, S> {
        const { assert!(2 * S < 16, "two barriers a stage, and 16 in all") }
        let ring = Handover { base: self.base(), stage: 0, threads: K::THREADS, what: PhantomData };
        let warp = block.warp();
        if warp.index == K::THREADS / 32 - 1 {
            Role::Producer(Producer { ring, crew: ProducerCrew { lane: warp.lane }, filled: 0 })
        } else {
            Role::Consumer(Consumer { ring }, warp)
        }
    }
}

impl<T: SharedLayout, const S: usize> Producer<T, S> {
    /// Who copies.
    #[inline(always)]
    pub fn crew(&self) -> ProducerCrew {
        self.crew
    }

    /// Waits until the next stage is empty, starts its copies, and hands over the one whose copies have landed meanwhile.
    #[inline(always)]
    pub fn produce(&mut self, fill: impl FnOnce(&mut Vacant<'_, T>)) {
        if self.filled >= S as u32 {
            // SAFETY: this warp is converged; all consumers come to this barrier once a refill, with the same count.
            unsafe { barrier::sync_named(Handover::<T, S>::empty(self.ring.stage), self.ring.threads) }
        }
        // SAFETY: no consumer has a view of the stage: none has had one yet, or all have said that they left it.
        fill(&mut unsafe { Vacant::at(self.ring.address()) });
        if self.filled > 0 {
            cp_async::wait_group::<1>();
            self.hand_over((self.ring.stage + S as u32 - 1) % S as u32);
        }
        self.filled += 1;
        self.ring.advance();
    }

    /// Hands over the last stage.
    #[inline(always)]
    pub fn finish(self) {
        cp_async::wait_group::<0>();
        self.hand_over((self.ring.stage + S as u32 - 1) % S as u32);
    }

    #[inline(always)]
    fn hand_over(&self, stage: u32) {
        // SAFETY: this warp is converged; all consumers come to this barrier once a stage, with the same count.
        unsafe { barrier::sync_named(Handover::<T, S>::full(stage), self.ring.threads) }
    }
}

impl<T: SharedLayout, const S: usize> Consumer<T, S> {
    /// Waits for the next stage. `refilled`: whether the producer will use the stage again.
    #[inline(always)]
    pub fn wait(&mut self, refilled: bool) -> Lent<'_, T> {
        let (stage, base, threads) = (self.ring.stage, self.ring.address(), self.ring.threads);
        // SAFETY: this warp is converged; the producer comes once a stage, with the same count.
        unsafe { barrier::sync_named(Handover::<T, S>::full(stage), threads) }
        self.ring.advance();
        let release = refilled.then_some([Handover::<T, S>::empty(stage), threads]);
        // SAFETY: the producer's copies have landed and the barrier shows them; it refills the stage only after `release`.
        Lent { view: unsafe { T::at(base) }, release, consumer: PhantomData }
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
        if let Some([id, threads]) = self.release {
            // SAFETY: whoever holds the stage is a converged warp; the producer comes to this barrier before each refill.
            unsafe { barrier::sync_named(id, threads) }
        }
    }
}
