//! Sums of a table's entries. Each lane has its own sums, so no two lanes add to one word: the order of all
//! additions is fixed, and no two lanes meet in a bank.
use crate::shared::Place;
use crate::{Block, Steps};
use contract::Kernel;
use cuda_std::memory::{ld_shared_b32, st_shared_b32};

/// Shared memory for `N` sums of each lane, for warps that share `R` row tiles, `M` each:
/// `[warp][sum][lane]`.
pub struct LaneSums<const N: usize, const R: usize, const M: usize> {
    base: u32,
}

/// The sums of this lane.
pub struct OwnSums<const N: usize, const R: usize, const M: usize> {
    base: u32,
    /// The address of this lane's first sum.
    own: u32,
}

/// Bytes of a sum of all lanes of a warp.
const ROW: u32 = 128;

// SAFETY: the value addresses only the sums.
unsafe impl<const N: usize, const R: usize, const M: usize> Place for LaneSums<N, R, M> {
    const BYTES: usize = N * (R / M) * ROW as usize;
    const ALIGN: usize = ROW as usize;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        LaneSums { base }
    }
}

impl<const N: usize, const R: usize, const M: usize> LaneSums<N, R, M> {
    /// Begins with zeros.
    #[inline(always)]
    pub fn begin<K: Kernel>(self, block: &Block<K>) -> OwnSums<N, R, M> {
        const { assert!(K::THREADS as usize == R / M * 32, "each warp of the block has its sums") }
        let warp = block.warp();
        let own = self.base + warp.index * (N as u32 * ROW) + warp.lane * 4;
        for i in 0..N as u32 {
            // SAFETY: the word is one of this lane's, which no other lane accesses before `total`.
            unsafe { st_shared_b32(own + i * ROW, 0) }
        }
        OwnSums { base: self.base, own }
    }
}

impl<const N: usize, const R: usize, const M: usize> OwnSums<N, R, M> {
    /// Adds `x` to sum `i`, if there is such a sum.
    #[inline(always)]
    pub fn add(&mut self, i: u32, x: f32) {
        if i < N as u32 {
            let at = self.own + i * ROW;
            // SAFETY: the word is one of this lane's, which no other lane accesses before `total`.
            unsafe { st_shared_b32(at, (f32::from_bits(ld_shared_b32(at)) + x).to_bits()) }
        }
    }

    /// Adds the sums of all lanes and warps, in a fixed order. Calls `f(i, sum, is_mine)` for each sum in all
    /// lanes of one warp; `is_mine` is true in one lane.
    #[inline(always)]
    pub fn total<K: Kernel>(self, block: &mut Block<K>, mut f: impl FnMut(u32, f32, bool)) {
        block.sync();
        let warp = block.warp();
        for i in (Steps { at: warp.index, step: (R / M) as u32, end: N as u32 }) {
            let word = |of: usize| self.base + (of * N) as u32 * ROW + i * ROW + warp.lane * 4;
            // SAFETY: each lane has written its words before the barrier, and no lane writes them again.
            let sums = (0..R / M).map(|of| f32::from_bits(unsafe { ld_shared_b32(word(of)) }));
            f(i, warp.total(sums.sum()), warp.lane == 0)
        }
    }
}
