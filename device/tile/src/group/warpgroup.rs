//! Warpgroups that compute, and the ping-pong schedule between them.
use crate::Warp;
use crate::group::sealed::Synchronize;
use crate::group::{Capability, ThreadGroup, sealed};
use cuda_std::barrier;
use cuda_std::math::opaque;

/// A whole, converged warpgroup: one of `W` consumer warpgroups. `Warpgroup` is not `Copy`: a product takes
/// it by `&mut`.
pub struct Warpgroup<const W: usize> {
    pub(crate) index: u32,
    /// The warp of this thread. The warp's index counts only consumer warps.
    pub(crate) warp: Warp,
    pub(crate) ping_pong: PingPong<W>,
}

impl<const W: usize> Warpgroup<W> {
    /// The warp of this thread.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        self.warp
    }

    /// The warpgroup's index, below `W`.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The warp's first row in a tile that has 64 rows per warpgroup.
    #[inline(always)]
    pub fn first_row(&self) -> u32 {
        self.warp.index * 16
    }

    /// The warpgroup's first row in the tile.
    #[inline(always)]
    pub(crate) fn first_of_group(&self) -> u32 {
        self.index * 64
    }

    /// Whether this thread is the warpgroup's elected thread.
    #[inline(always)]
    pub(crate) fn elected(&self) -> bool {
        self.warp.index.is_multiple_of(4) && self.warp.lane == 0
    }

    /// Hides this thread's place from the compiler, as [`Block::forget_thread`](crate::Block::forget_thread).
    #[inline(always)]
    pub fn forget_thread(&mut self) {
        self.index = opaque(self.index);
        self.warp = Warp { index: opaque(self.warp.index), lane: opaque(self.warp.lane) };
    }

    /// A barrier of all consumer warpgroups. Every consumer warpgroup must call this function.
    #[inline(always)]
    pub fn wait_for_all(&mut self) {
        self.team().sync_group();
    }

    /// A barrier of the warpgroup.
    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        const { assert!(W <= 3, "ping-pong uses named barriers 1 to 3") }
        // SAFETY: only this warpgroup uses this barrier; `Warpgroup` stands for 128 converged threads.
        unsafe { barrier::sync_named(8 + self.index, 128) }
    }
}

/// All `W` consumer warpgroups together, each of which is whole and converged.
pub struct Team<const W: usize> {
    warp: Warp,
}

impl<const W: usize> Warpgroup<W> {
    /// All consumer warpgroups, of which this warpgroup is one. Every consumer warpgroup must call this
    /// function.
    #[inline(always)]
    pub fn team(&mut self) -> Team<W> {
        Team { warp: self.warp }
    }
}

impl<const W: usize> sealed::Sealed for Team<W> {}
impl<const W: usize> Capability for Team<W> {}
impl<const W: usize> sealed::Synchronize for Team<W> {
    #[inline(always)]
    fn sync_group(&mut self) {
        // SAFETY: only the consumer warps use this barrier, and `Team` stands for all of them, converged.
        unsafe { barrier::sync_named(7, Self::THREADS) }
    }
}
impl<const W: usize> ThreadGroup for Team<W> {
    const THREADS: u32 = 128 * W as u32;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.warp.index * 32 + self.warp.lane
    }
    #[inline(always)]
    fn warp(&self) -> Warp {
        self.warp
    }
}

/// The warps of the warpgroup that refills stages ([`crate::pipeline::Refilled`]). Only the stages make this
/// value, so that nothing else copies as this group.
pub struct Refillers {
    /// The index of the warpgroup.
    index: u32,
    warp: Warp,
}

impl<const W: usize> Warpgroup<W> {
    /// This warpgroup's warps.
    #[inline(always)]
    pub(crate) fn refillers(&mut self) -> Refillers {
        const { assert!(W <= 3, "ping-pong uses named barriers 1 to 3") }
        Refillers { index: self.index, warp: self.warp }
    }
}

impl Refillers {
    /// The index of the warpgroup.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl sealed::Sealed for Refillers {}
impl Capability for Refillers {}
impl sealed::Synchronize for Refillers {
    #[inline(always)]
    fn sync_group(&mut self) {
        // SAFETY: only this warpgroup uses this barrier; `Refillers` stands for its 128 converged threads.
        unsafe { barrier::sync_named(8 + self.index, Self::THREADS) }
    }
}
impl ThreadGroup for Refillers {
    const THREADS: u32 = 128;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.warp.index % 4 * 32 + self.warp.lane
    }
    #[inline(always)]
    fn warp(&self) -> Warp {
        self.warp
    }
}

/// Ping-pong: warpgroups take turns at issuing products, so that the arithmetic of one warpgroup runs beside
/// the products of the others.
pub(crate) struct PingPong<const W: usize> {
    mine: u32,
    next: u32,
}

impl<const W: usize> PingPong<W> {
    /// The first named barrier of the ping-pong. Barrier 0 belongs to the block.
    const FIRST: u32 = 1;
    /// Number of threads at a barrier: the waiting warpgroup and the arriving warpgroup.
    const THREADS: u32 = 256;

    #[inline(always)]
    pub(crate) fn new(index: u32) -> Self {
        let next = if index + 1 == W as u32 { 0 } else { index + 1 };
        let ping_pong = PingPong { mine: Self::FIRST + index, next: Self::FIRST + next };
        if W > 1 && index == 0 {
            // SAFETY: this is the warpgroup's own barrier; warpgroup 0 gives itself the first turn.
            unsafe { barrier::arrive_named(ping_pong.mine, Self::THREADS) }
        }
        ping_pong
    }

    /// Waits for this warpgroup's turn.
    #[inline(always)]
    pub(crate) fn wait(&mut self) {
        if W > 1 {
            // SAFETY: in each turn, this warpgroup waits here once, and the previous warpgroup arrives once.
            unsafe { barrier::sync_named(self.mine, Self::THREADS) }
        }
    }

    /// Gives the turn to the next warpgroup.
    #[inline(always)]
    pub(crate) fn arrive(&mut self) {
        if W > 1 {
            // SAFETY: the reason above holds here too.
            unsafe { barrier::arrive_named(self.next, Self::THREADS) }
        }
    }
}
