//! Turns: additions to tiles in global memory in a fixed order, so that a repeated launch gives identical
//! bits.
//!
//! A counter per tile has the number of the turn that comes next. Consumer warps add to a tile in each step,
//! but do not touch the counter. A *keeper*, one thread of the producer warpgroup, waits for the block's turn
//! ahead of the warps, and passes the turn on when all warps have added. To pass a turn on takes about as
//! long as a step, so two keepers take the steps alternately.
//!
//! The order of memory accesses: the additions of a warp come before its arrival at *done* (lanes meet before
//! one of them arrives), *done* before the keeper's release of the counter, the release before the acquire of
//! the block whose turn is next, and the acquire before *granted* and the additions of this block's warps.
use crate::Warp;
use crate::global::GlobalSums;
use crate::group::Warpgroup;
use crate::mma::Acc;
use crate::pipeline::Specialized;
use crate::shared::Place;
use contract::TileSums;
use cuda_std::atomic::{ld_acquire, red_release_add};
use cuda_std::mbarrier;

/// Shared memory for two mbarriers per keeper: *granted*, and *done* behind it.
pub struct Turns {
    base: u32,
}

/// A keeper's side.
pub struct TurnKeeper {
    granted: u32,
    parity: u32,
    is_mine: bool,
}

/// The side of the warps that add.
pub struct TurnTaker {
    base: u32,
    /// The number of the step.
    step: u32,
}

/// The number of keepers.
const KEEPERS: u32 = 2;
/// Bytes of one mbarrier, and of a keeper's two mbarriers.
const DONE: u32 = mbarrier::BYTES as u32;
const PAIR: u32 = 2 * DONE;

// SAFETY: the layout has two mbarriers per keeper.
unsafe impl Place for Turns {
    const BYTES: usize = (KEEPERS * PAIR) as usize;
    const ALIGN: usize = mbarrier::BYTES;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Turns { base }
    }
}

impl Specialized for Turns {
    type Producer = ();
    type Converter = TurnKeeper;
    type Consumer = TurnTaker;
    const PRODUCERS: u32 = 1;
    const KEEPERS: u32 = KEEPERS;
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        for keeper in 0..KEEPERS {
            let granted = self.base + keeper * PAIR;
            // SAFETY: the mbarriers belong to `self`; the caller keeps the other preconditions.
            unsafe {
                mbarrier::init(granted, 1);
                mbarrier::init(granted + DONE, consumers);
            }
        }
    }
    #[inline(always)]
    unsafe fn producer(self, _: Warp) {}
    #[inline(always)]
    unsafe fn converter(self, warp: Warp) -> TurnKeeper {
        TurnKeeper { granted: self.base + warp.index * PAIR, parity: 0, is_mine: warp.index == 0 }
    }
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> TurnTaker {
        TurnTaker { base: self.base, step: 0 }
    }
}

impl TurnKeeper {
    /// Keeps a step, if it is this keeper's: waits for turn `turn` of tile `tile`, counted over all heads,
    /// lets the warps add, and passes the turn on. The turns of a tile are numbered from 0, without gaps.
    #[inline(always)]
    pub fn keep(&mut self, sums: &TileSums, tile: u32, turn: u32) {
        let is_mine = self.is_mine;
        self.is_mine = !is_mine;
        if !is_mine {
            return;
        }
        let counter = sums.counters + (TileSums::FIRST_TILE + tile) as u64 * 4;
        // SAFETY: `specialize` has initialised the mbarriers. This thread alone arrives at *granted*, once
        // per phase. The counter exists, as `TileSums` promises, and all threads use atomics.
        unsafe {
            while ld_acquire(counter) != turn {}
            mbarrier::arrive(self.granted);
            mbarrier::wait_parity(self.granted + DONE, self.parity);
            red_release_add(counter, 1);
        }
        self.parity ^= 1;
    }
}

impl TurnTaker {
    /// Waits for the turn of this step at tile `tile`, and adds the warpgroup's part. The first turn of a
    /// tile stores its part, so that the sums need no value before the launch.
    #[inline(always)]
    pub fn add<const W: usize, const H: usize>(
        &mut self,
        sums: GlobalSums<'_, W, H>,
        (tile, is_first): (u32, bool),
        acc: &Acc<1, H>,
        group: &mut Warpgroup<W>,
    ) {
        let granted = self.base + self.step % KEEPERS * PAIR;
        // SAFETY: `specialize` has initialised the mbarriers. The keeper has granted the turn. All lanes have
        // added before the warp arrives, once per phase.
        unsafe {
            mbarrier::wait_parity(granted, self.step / KEEPERS % 2);
            sums.add(tile, acc, is_first, group);
            group.warp.sync();
            mbarrier::arrive_if(granted + DONE, group.warp.lane == 0);
        }
        self.step += 1;
    }
}
