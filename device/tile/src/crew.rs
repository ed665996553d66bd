//! Who copies together, how the copies travel, and which rows are whose.
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::{cp_async, mbarrier};

/// What only this crate may implement, and what only it may call.
pub(crate) mod sealed {
    /// Closes the crate's traits.
    pub trait Sealed {}

    /// A crew that can wait for itself.
    pub trait Meet {
        /// What the members copied and wrote before is seen by all of them after.
        fn meet(&mut self);
    }
}

/// Threads that copy a tile together, wait together and read it together: the block, or a warp.
pub trait Crew: sealed::Sealed + sealed::Meet {
    /// How many.
    const THREADS: u32;
    /// Which of them this one is.
    fn member(&self) -> u32;
    /// Its warp, all of which belongs to the crew.
    fn warp(&self) -> Warp;
}

impl<K> sealed::Sealed for Block<K> {}
impl<K: Kernel> sealed::Meet for Block<K> {
    #[inline(always)]
    fn meet(&mut self) {
        self.sync()
    }
}
impl<K: Kernel> Crew for Block<K> {
    const THREADS: u32 = K::THREADS;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.thread
    }
    #[inline(always)]
    fn warp(&self) -> Warp {
        self.warp()
    }
}

impl sealed::Sealed for Warp {}
impl sealed::Meet for Warp {
    #[inline(always)]
    fn meet(&mut self) {
        self.sync()
    }
}
impl Crew for Warp {
    const THREADS: u32 = 32;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.lane
    }
    #[inline(always)]
    fn warp(&self) -> Warp {
        *self
    }
}

/// How what fills a place travels there. A place, its slots and its ring name it as `By`, so that one is
/// never filled in another's way.
pub trait Transport: sealed::Sealed {
    /// Arrivals that end a phase of a stage's *full* barrier ([`crate::Relay`]).
    const ARRIVALS: u32;
    /// What the bytes of a [`crate::Relay`] are a multiple of.
    const ROUND: usize;
    /// Bytes that a stage of a [`crate::Relay`] has beside it.
    const NOTE_BYTES: usize = 0;
}

/// A transport whose copies the threads of a crew make.
pub trait CrewTransport: Transport {
    /// Who copies.
    type Crew: Crew;

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

/// By the threads of crew `W`, 16 bytes each at a time (`cp.async`).
pub struct CpAsync<W>(PhantomData<W>);

impl<W> sealed::Sealed for CpAsync<W> {}
impl<W: Crew> Transport for CpAsync<W> {
    const ARRIVALS: u32 = W::THREADS;
    const ROUND: usize = 1;
}
impl<W: Crew> CrewTransport for CpAsync<W> {
    type Crew = W;

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
        // SAFETY: the caller's promise; every thread of the crew arrives once.
        unsafe { mbarrier::cp_async_arrive_noinc(full) }
    }
}

/// A warp's own rows: `M` row tiles of a tile that has `R`.
#[derive(Clone, Copy)]
pub struct WarpRows<const R: usize, const M: usize> {
    warp: Warp,
    /// Which warp of those that share the tile's rows.
    index: u32,
}

impl<const R: usize, const M: usize> WarpRows<R, M> {
    /// # Safety
    /// - `index` is below `R / M`, another one for each warp of a team.
    #[inline(always)]
    pub(crate) unsafe fn new(warp: Warp, index: u32) -> Self {
        WarpRows { warp, index }
    }

    /// The warp.
    #[inline(always)]
    pub fn warp(self) -> Warp {
        self.warp
    }

    /// Which warp of its team it is.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    /// Its first row in the tile.
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.index * M as u32 * 16
    }
}

/// Which of `OF` teams a warp is in. The warps of a team share a tile's rows; the teams take the same rows,
/// and different tiles of a stage.
#[derive(Clone, Copy)]
pub struct Team<const OF: usize> {
    index: u32,
}

impl Team<1> {
    /// All warps.
    pub const ONLY: Team<1> = Team { index: 0 };
}

impl<const OF: usize> Team<OF> {
    /// Its number, below `OF`.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.index
    }
}

impl<K: Kernel> Block<K> {
    /// The block's warps in `OF` teams, each of which shares a tile's `R` row tiles, `M` a warp: this warp's
    /// rows, and its team.
    #[inline(always)]
    pub fn teams<const R: usize, const M: usize, const OF: usize>(&self) -> (WarpRows<R, M>, Team<OF>) {
        const {
            assert!(
                R.is_multiple_of(M) && K::THREADS as usize == R / M * OF * 32,
                "the teams' warps must share the rows, and make up the block"
            )
        }
        let warp = self.warp();
        let size = (R / M) as u32;
        // A constant where there is one team.
        let (index, team) = if OF == 1 { (warp.index, 0) } else { (warp.index % size, warp.index / size) };
        // SAFETY: a remainder by, or one of, as many warps as share the rows.
        (unsafe { WarpRows::new(warp, index) }, Team { index: team })
    }
}
