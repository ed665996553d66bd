//! A block that consists of warpgroups for a while. Between two such whiles, all warps of the block search
//! for work items together, or merge results.
//!
//! [`Block::specialize`] differs: it divides the block for good, and adds a producer warpgroup.
use crate::copy::Transport;
use crate::exchange::Scratch;
use crate::group::{PingPong, Warpgroup};
use crate::pipeline::Unfilled;
use crate::shared::{Place, SharedLayout};
use crate::{Block, Smem, Warp};
use contract::Kernel;
use cuda_std::{mbarrier, tma};

/// Shared memory for warpgroups, which may contain mbarriers.
pub trait Phased: Place {
    /// Initialises the mbarriers.
    ///
    /// # Safety
    /// - One thread calls this function, and a block barrier follows before any use.
    unsafe fn init(&self);
    /// Ends the use of the mbarriers.
    ///
    /// # Safety
    /// - One thread calls this function. A block barrier precedes the call, and another one follows it. No
    ///   copy is in flight.
    unsafe fn end(&self);
}

impl<A: Phased, B: Phased> Phased for (A, B) {
    #[inline(always)]
    unsafe fn init(&self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            self.0.init();
            self.1.init();
        }
    }
    #[inline(always)]
    unsafe fn end(&self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            self.0.end();
            self.1.end();
        }
    }
}

impl<T: SharedLayout, By: Transport> Phased for Unfilled<T, By> {
    #[inline(always)]
    unsafe fn init(&self) {}
    #[inline(always)]
    unsafe fn end(&self) {}
}

impl<K: Kernel> Block<K> {
    /// Splits all of the block's shared memory into `P`, and lets each of the block's `W` warpgroups run
    /// `compute`. Returns the result of `compute`, and the shared memory, which is scratch memory again.
    ///
    /// `compute` must take every stage that it fills.
    #[inline(always)]
    pub fn in_warpgroups<P: Phased, R, const W: usize>(
        &mut self,
        smem: Smem<K>,
        compute: impl FnOnce(Warpgroup<W>, P) -> R,
    ) -> (R, Scratch<P>) {
        const {
            assert!(K::THREADS == 128 * W as u32, "the warpgroups must make up the block");
            assert!(P::BYTES == K::SMEM_BYTES, "the shared layout and the launch contract disagree");
            assert!(P::ALIGN <= 1024, "dynamic shared memory begins at a multiple of 1024 bytes")
        }
        // SAFETY: the launch gave these bytes, and `smem`, the only right to them, is consumed. The first and
        // the last view only touch mbarriers, one before and the other after the warpgroups' view.
        let shared = || unsafe { P::at(smem.base) };
        // The number is the same in all lanes. ptxas must know this, so that branches on the number stay
        // uniform.
        let number = self.warp().uniform(self.thread / 32);
        let warp = Warp { index: number, lane: self.thread % 32 };
        if self.thread == 0 {
            // SAFETY: one thread calls this, and the barrier follows.
            unsafe { shared().init() };
            mbarrier::fence_init();
        }
        // Threads may have used this memory before. TMA and products use it from now on.
        tma::fence_proxy_async();
        self.sync();
        let index = number / 4;
        let result = compute(Warpgroup { index, warp, ping_pong: PingPong::new(index) }, shared());
        self.sync();
        if self.thread == 0 {
            // SAFETY: one thread calls this between two barriers. The warps have waited for every stage.
            unsafe { shared().end() }
        }
        self.sync();
        // SAFETY: the warpgroups' view is gone, and no copy is in flight.
        (result, unsafe { Scratch::new(smem.base) })
    }
}
