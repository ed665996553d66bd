//! Numbers that warps tell each other, and blocks.
use crate::Block;
use contract::{Counters, Kernel};
use core::marker::PhantomData;
use cuda_std::atomic::{Order, Scope, atom_inc};
use cuda_std::memory::{ld_shared_b32, st_shared_b32};

/// `N` words of shared memory, which the warps of a block leave for each other once.
pub struct Tally<'l, const N: usize> {
    base: u32,
    lent: PhantomData<&'l mut u32>,
}

/// `N` words that warps have left, to be read by all.
pub struct Tallied<'l, const N: usize> {
    base: u32,
    lent: PhantomData<&'l u32>,
}

impl<'l, const N: usize> Tally<'l, N> {
    /// # Safety
    /// - `base` starts `4 * N` bytes of shared memory that nothing else stands for while `'l` lasts.
    #[inline(always)]
    pub(crate) unsafe fn at(base: u32) -> Self {
        Tally { base, lent: PhantomData }
    }

    /// Each warp leaves words, `(which, what)`, no two warps the same; behind a barrier all of them are there
    /// to read, and none can be left again. What a warp leaves may be computed by all of its lanes together.
    #[inline(always)]
    pub fn leave<K: Kernel>(
        self,
        words: impl Iterator<Item = (u32, u32)>,
        block: &mut Block<K>,
    ) -> Tallied<'l, N> {
        let lane = block.warp().lane;
        for (i, x) in words {
            if lane == 0 && i < N as u32 {
                // SAFETY: a word of a place that is `self`'s alone.
                unsafe { st_shared_b32(self.base + i * 4, x) }
            }
        }
        block.sync();
        Tallied { base: self.base, lent: PhantomData }
    }
}

impl<'l, const N: usize> Tallied<'l, N> {
    /// Keeps the first `A` words to be read, and gives back the `B` words behind them to be left again.
    #[inline(always)]
    pub fn split<const A: usize, const B: usize>(self) -> (Tallied<'l, A>, Tally<'l, B>) {
        const { assert!(A + B == N, "the two parts must make up the words") }
        let behind = self.base + A as u32 * 4;
        // SAFETY: words of what `self` alone stood for, which the first part does not read.
        (Tallied { base: self.base, lent: PhantomData }, unsafe { Tally::at(behind) })
    }

    /// Word `i`; 0 past the last.
    #[inline(always)]
    pub fn get(&self, i: u32) -> u32 {
        if i >= N as u32 {
            return 0;
        }
        // SAFETY: a word of a place that was left before a barrier, and that nobody writes while `'l` lasts.
        unsafe { ld_shared_b32(self.base + i * 4) }
    }
}

impl<K: Kernel> Block<K> {
    /// Tells that what this block has written is there. True in the last of `blocks` blocks to say so to
    /// counter `i`, which sees what all of them have written, and leaves the counter at 0. False where there
    /// is no such counter.
    #[inline(always)]
    pub fn is_last_of(&mut self, blocks: u32, counters: &Counters, i: u32) -> bool {
        self.sync();
        let mut last = false;
        if self.thread == 0 && i < counters.count {
            let word = counters.base + i as u64 * 4;
            // SAFETY: a counter that exists, which only this function touches. The barrier before orders the
            // whole block's writes before the release, that after orders its reads behind the acquire.
            let before = unsafe { atom_inc(word as *mut u32, blocks - 1, Order::AcqRel, Scope::Device) };
            last = before == blocks - 1;
        }
        self.any(last)
    }
}
