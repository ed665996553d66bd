//! Warpgroups that compute, and their ping-pong schedule.
use crate::Warp;
use cuda_std::barrier;

/// A whole, converged warpgroup, one of `W` that compute. Not `Copy`: a product takes it by `&mut`.
pub struct Warpgroup<const W: usize> {
    pub(crate) index: u32,
    /// Counted through those that compute.
    pub(crate) warp: Warp,
    pub(crate) ping_pong: PingPong<W>,
}

impl<const W: usize> Warpgroup<W> {
    /// This thread's warp.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        self.warp
    }

    /// The warp's first row of a tile of 64 rows for each warpgroup.
    #[inline(always)]
    pub fn first_row(&self) -> u32 {
        self.warp.index * 16
    }

    /// The warpgroup's.
    #[inline(always)]
    pub(crate) fn first_of_group(&self) -> u32 {
        self.index * 64
    }

    /// One thread of it.
    #[inline(always)]
    pub(crate) fn elected(&self) -> bool {
        self.warp.index.is_multiple_of(4) && self.warp.lane == 0
    }

    /// A barrier of the warpgroup.
    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        const { assert!(W <= 3, "behind those of the turns") }
        // SAFETY: the warpgroup's own barrier; `Warpgroup` stands for 128 converged threads.
        unsafe { barrier::sync_named(8 + self.index, 128) }
    }
}

/// Warpgroups take turns at issuing products, so that one's other work runs beside the others' products.
pub(crate) struct PingPong<const W: usize> {
    mine: u32,
    next: u32,
}

impl<const W: usize> PingPong<W> {
    /// Barrier 0 is the block's.
    const FIRST: u32 = 1;
    /// The one who waits, and the one who passes.
    const THREADS: u32 = 256;

    #[inline(always)]
    pub(crate) fn new(index: u32) -> Self {
        let next = if index + 1 == W as u32 { 0 } else { index + 1 };
        let ping_pong = PingPong { mine: Self::FIRST + index, next: Self::FIRST + next };
        if W > 1 && index == 0 {
            // SAFETY: its own barrier: the first turn is passed to it by itself.
            unsafe { barrier::arrive_named(ping_pong.mine, Self::THREADS) }
        }
        ping_pong
    }

    /// Waits for the warpgroup's turn.
    #[inline(always)]
    pub(crate) fn wait(&mut self) {
        if W > 1 {
            // SAFETY: a warpgroup waits here, and the one before it passes, once a turn.
            unsafe { barrier::sync_named(self.mine, Self::THREADS) }
        }
    }

    /// Passes the turn on.
    #[inline(always)]
    pub(crate) fn arrive(&mut self) {
        if W > 1 {
            // SAFETY: as above.
            unsafe { barrier::arrive_named(self.next, Self::THREADS) }
        }
    }
}
