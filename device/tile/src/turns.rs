//! Turns: additions to tiles in global memory in a fixed order, so that a repeated launch gives identical
//! bits.
//!
//! A counter per tile has the number of the turn that comes next. Consumer warps add to a tile in each step,
//! but do not touch the counter. A *keeper*, one thread of the producer warpgroup, waits for the block's turn
//! ahead of the warps, tells them the tile, and passes the turn on when all warps have added. To pass a turn
//! on takes about as long as a step, so two keepers take the steps alternately.
//!
//! The order of memory accesses: the additions of a warp come before its arrival at *done* (lanes meet before
//! one of them arrives), *done* before the keeper's release of the counter, the release before the acquire of
//! the block whose turn is next, and the acquire before *granted* and the additions of this block's warps.
use crate::Warp;
use crate::global::{GlobalSums, SumTile};
use crate::group::Warpgroup;
use crate::mma::Acc;
use crate::pipeline::Specialized;
use crate::shared::Place;
use cuda_std::atomic::{ld_acquire, red_release_add};
use cuda_std::mbarrier;
use cuda_std::memory::{ld_shared_v2_b32, st_shared_v2_b32};

/// Shared memory for two mbarriers per keeper, *granted* and *done*, and the granted tile behind them. The
/// tiles are those of [`GlobalSums`] of these sizes.
pub struct Turns<const W: usize, const H: usize> {
    base: u32,
}

/// A keeper's side.
pub struct TurnKeeper<const W: usize, const H: usize> {
    granted: u32,
    parity: u32,
    is_mine: bool,
}

/// The side of the warps that add.
pub struct TurnTaker<const W: usize, const H: usize> {
    base: u32,
    /// The number of the step.
    step: u32,
}

/// The number of keepers.
const KEEPERS: u32 = 2;
/// Offsets of a keeper's mbarrier *done* and of its tile behind *granted*, and the bytes of all three.
const DONE: u32 = mbarrier::BYTES as u32;
const TILE: u32 = 2 * DONE;
const EACH: u32 = TILE + 8;

// SAFETY: the layout has two mbarriers and two words per keeper.
unsafe impl<const W: usize, const H: usize> Place for Turns<W, H> {
    const BYTES: usize = (KEEPERS * EACH) as usize;
    const ALIGN: usize = mbarrier::BYTES;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Turns { base }
    }
}

impl<const W: usize, const H: usize> Specialized for Turns<W, H> {
    type Producer = ();
    type Converter = TurnKeeper<W, H>;
    type Consumer = TurnTaker<W, H>;
    const PRODUCERS: u32 = 1;
    const KEEPERS: u32 = KEEPERS;
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        for keeper in 0..KEEPERS {
            let granted = self.base + keeper * EACH;
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
    unsafe fn converter(self, warp: Warp) -> TurnKeeper<W, H> {
        TurnKeeper { granted: self.base + warp.index * EACH, parity: 0, is_mine: warp.index == 0 }
    }
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> TurnTaker<W, H> {
        TurnTaker { base: self.base, step: 0 }
    }
}

impl<const W: usize, const H: usize> TurnKeeper<W, H> {
    /// Keeps a step, if it is this keeper's: waits for turn `turn` of the tile, lets the warps add, and
    /// passes the turn on. The turns of a tile are numbered from 0, without gaps.
    #[inline(always)]
    pub fn keep(&mut self, tile: SumTile<'_, W, H>, turn: u32) {
        let is_mine = self.is_mine;
        self.is_mine = !is_mine;
        if !is_mine {
            return;
        }
        // SAFETY: `specialize` has initialised the mbarriers. All warps have read the last tile before they
        // arrived at *done*, for which this thread has waited. This thread alone arrives at *granted*, once
        // per phase. The counter of the tile exists, and all threads use atomics.
        unsafe {
            st_shared_v2_b32(self.granted + TILE, tile.grant(turn == 0));
            while ld_acquire(tile.counter()) != turn {}
            mbarrier::arrive(self.granted);
            mbarrier::wait_parity(self.granted + DONE, self.parity);
            red_release_add(tile.counter(), 1);
        }
        self.parity ^= 1;
    }
}

impl<const W: usize, const H: usize> TurnTaker<W, H> {
    /// Waits for the turn of this step, and adds the warpgroup's part to the keeper's tile. The first turn of
    /// a tile stores its part, so that the sums need no value before the launch.
    #[inline(always)]
    pub fn add(&mut self, acc: &Acc<1, H>, group: &mut Warpgroup<W>) {
        let granted = self.base + self.step % KEEPERS * EACH;
        // SAFETY: `specialize` has initialised the mbarriers. The keeper has written the tile and granted the
        // turn. All lanes have read the tile and added before the warp arrives, once per phase.
        unsafe {
            mbarrier::wait_parity(granted, self.step / KEEPERS % 2);
            GlobalSums::<W, H>::add(ld_shared_v2_b32(granted + TILE), acc, group);
            group.warp.sync();
            mbarrier::arrive_if(granted + DONE, group.warp.lane == 0);
        }
        self.step += 1;
    }
}
