//! A operands loaded from global memory. The first k-steps stay in registers. If registers are scarce, each
//! lane keeps the other k-steps in its own words of shared memory.
use crate::Block;
use crate::global::GlobalRows;
use crate::group::{SplitGroup, WarpRows};
use crate::mma::TensorCore;
use crate::shared::Place;
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::memory::{ld_shared_v4_b32, st_shared_v4_b32};

/// Shared memory for all but the first `HELD` of `K` k-steps, for the warps of two split groups that share
/// `R` row tiles, `M` per warp. The words of partner warps alternate as in [`Sums`](crate::exchange::Sums),
/// so that one register of a lane can address both.
pub struct PlaceA<E, const R: usize, const M: usize, const K: usize, const HELD: usize> {
    base: u32,
    element: PhantomData<E>,
}

/// An A operand of one warp: `[k-step][row tile]`.
pub struct OperandA<E, const M: usize, const K: usize, const HELD: usize> {
    held: [[[u32; 4]; M]; HELD],
    /// The shared address of this lane's first word.
    at: u32,
    element: PhantomData<E>,
}

// SAFETY: the layout has 16 bytes per lane for each base tile that registers do not hold.
unsafe impl<E, const R: usize, const M: usize, const K: usize, const HELD: usize> Place
    for PlaceA<E, R, M, K, HELD>
{
    const BYTES: usize = R * 2 * (K - HELD) * 512;
    const ALIGN: usize = 16;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        PlaceA { base, element: PhantomData }
    }
}

impl<E: TensorCore, const R: usize, const M: usize, const K: usize, const HELD: usize>
    PlaceA<E, R, M, K, HELD>
{
    /// Loads the warp's rows of the tile that starts with row `row0`. Rows and columns that do not exist are
    /// zero.
    #[inline(always)]
    pub fn load<C: Kernel>(
        self,
        from: &GlobalRows<E, K>,
        row0: u32,
        (rows, group): (WarpRows<R, M>, SplitGroup<2>),
        _: &Block<C>,
    ) -> OperandA<E, M, K, HELD> {
        const { assert!(C::THREADS as usize == R / M * 2 * 32, "each warp must have its own part") }
        let (lane, row0) = (rows.warp().lane, row0 + rows.first());
        let step = |k: usize| {
            core::array::from_fn(|m| {
                core::array::from_fn(|i| {
                    let row = row0 + (m * 16 + i % 2 * 8) as u32 + lane / 4;
                    from.word(row, (2 * k + i / 2) as u32, lane % 4)
                })
            })
        };
        let own = rows.index() * ((K - HELD) * M * 1024) as u32 + group.index() * 512;
        let operand = OperandA {
            held: core::array::from_fn(step),
            at: self.base + own + lane * 16,
            element: PhantomData,
        };
        for k in HELD..K {
            let registers: [_; M] = step(k);
            for m in 0..M {
                // SAFETY: these are this lane's words of shared memory that belongs to `self` alone.
                unsafe { st_shared_v4_b32(operand.word(k, m), registers[m]) }
            }
        }
        operand
    }
}

impl<E: TensorCore, const M: usize, const K: usize, const HELD: usize> OperandA<E, M, K, HELD> {
    #[inline(always)]
    fn word(&self, k: usize, m: usize) -> u32 {
        self.at + (((k - HELD) * M + m) * 1024) as u32
    }

    /// The registers of k-step `k`.
    #[inline(always)]
    pub(crate) fn k_step(&self, k: usize) -> [[u32; 4]; M] {
        if k < HELD {
            self.held[k]
        } else {
            // SAFETY: this lane has written the words in `load`, and no other lane has written them.
            core::array::from_fn(|m| unsafe { ld_shared_v4_b32(self.word(k, m)) })
        }
    }
}
