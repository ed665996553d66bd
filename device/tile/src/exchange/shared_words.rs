//! Words that the warps of a block exchange, and the counter that elects the last block of a launch.
use crate::Block;
use contract::{Counters, Kernel};
use core::marker::PhantomData;
use cuda_std::atomic::{Order, Scope, atom_inc};
use cuda_std::memory::{ld_shared_b32, st_shared_b32};

/// `N` words of shared memory that the warps of a block write once.
pub struct SharedWords<'l, const N: usize> {
    base: u32,
    lent: PhantomData<&'l mut u32>,
}

/// `N` words that warps have written, and that all warps can read.
pub struct WrittenWords<'l, const N: usize> {
    base: u32,
    lent: PhantomData<&'l u32>,
}

impl<'l, const N: usize> SharedWords<'l, N> {
    /// # Safety
    /// - `4 * N` bytes of shared memory from `base` on belong to no other value while `'l` lasts.
    #[inline(always)]
    pub(crate) unsafe fn at(base: u32) -> Self {
        SharedWords { base, lent: PhantomData }
    }

    /// Each warp writes words, which are given as `(index, value)`. Two warps must not write the same index.
    /// After a barrier, all words are readable, and no word can be written again. All lanes of a warp may
    /// compute a word together.
    #[inline(always)]
    pub fn write<K: Kernel>(
        self,
        words: impl Iterator<Item = (u32, u32)>,
        block: &mut Block<K>,
    ) -> WrittenWords<'l, N> {
        let lane = block.warp().lane;
        for (i, x) in words {
            if lane == 0 && i < N as u32 {
                // SAFETY: the word lies in shared memory that belongs to `self` alone.
                unsafe { st_shared_b32(self.base + i * 4, x) }
            }
        }
        block.sync();
        WrittenWords { base: self.base, lent: PhantomData }
    }
}

impl<'l, const N: usize> WrittenWords<'l, N> {
    /// Keeps the first `A` words readable, and returns the `B` words behind them, which can be written again.
    #[inline(always)]
    pub fn split<const A: usize, const B: usize>(self) -> (WrittenWords<'l, A>, SharedWords<'l, B>) {
        const { assert!(A + B == N, "the two parts must cover all words") }
        let behind = self.base + A as u32 * 4;
        // SAFETY: the words belonged to `self` alone, and the first part does not read the words of the
        // second.
        (WrittenWords { base: self.base, lent: PhantomData }, unsafe { SharedWords::at(behind) })
    }

    /// Word `i`, or 0 if `i` is past the last word.
    #[inline(always)]
    pub fn get(&self, i: u32) -> u32 {
        if i >= N as u32 {
            return 0;
        }
        // SAFETY: the word was written before a barrier, and no thread writes it while `'l`
        // lasts.
        unsafe { ld_shared_b32(self.base + i * 4) }
    }
}

impl<K: Kernel> Block<K> {
    /// Announces to counter `i` that all writes of this block are done. Returns true in the last of `blocks`
    /// blocks. This block sees the writes of all other blocks, and the counter is 0 again. Returns false if
    /// the counter does not exist.
    #[inline(always)]
    pub fn is_last_of(&mut self, blocks: u32, counters: &Counters, i: u32) -> bool {
        self.sync();
        let mut last = false;
        if self.thread == 0 && i < counters.count {
            let word = counters.base + i as u64 * 4;
            // SAFETY: the counter exists, and only this function accesses it. The barrier before the atomic
            // orders the writes of the whole block before the release. The barrier behind the atomic orders
            // the reads of the block behind the acquire.
            let before = unsafe { atom_inc(word as *mut u32, blocks - 1, Order::AcqRel, Scope::Device) };
            last = before == blocks - 1;
        }
        self.any(last)
    }
}
