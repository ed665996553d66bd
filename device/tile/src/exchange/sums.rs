//! Sums over two split groups: each warp adds the accumulator of its partner, which is the warp of the other
//! group that has the same rows.
use crate::Block;
use crate::copy::CpAsync;
use crate::group::{SplitGroup, WarpRows};
use crate::mma::Acc;
use crate::pipeline::{Pipeline, Ready};
use crate::shared::{Place, SharedLayout};
use contract::Kernel;
use cuda_std::memory::{ld_shared_v4_b32, st_shared_v4_b32};

/// Shared memory for accumulators of `M x N` tiles, for two split groups that share `R` row tiles.
pub struct Sums<const R: usize, const M: usize, const N: usize> {
    base: u32,
}

/// Bytes of four registers of all lanes of a warp.
const QUAD_BYTES: u32 = 512;

// SAFETY: the layout has a part for each warp.
unsafe impl<const R: usize, const M: usize, const N: usize> Place for Sums<R, M, N> {
    const BYTES: usize = R / M * 2 * Self::WARP_BYTES as usize;
    /// The size of the parts of two partners. The words of the two parts alternate.
    const ALIGN: usize = 2 * QUAD_BYTES as usize;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Sums { base }
    }
}

impl<const R: usize, const M: usize, const N: usize> Sums<R, M, N> {
    const WARP_BYTES: u32 = (M * N * 2) as u32 * QUAD_BYTES;

    /// The shared address of this lane's first four words in the warp's part. The words of its partner lie at
    /// the other multiple of [`QUAD_BYTES`].
    #[inline(always)]
    fn of(&self, rows: WarpRows<R, M>, group: SplitGroup<2>) -> u32 {
        self.base + rows.index() * 2 * Self::WARP_BYTES + group.index() * QUAD_BYTES + rows.warp().lane * 16
    }

    /// Calls `f(row tile, column tile, half, offset)` for each group of four registers of an accumulator.
    #[inline(always)]
    fn each(mut f: impl FnMut(usize, usize, usize, u32)) {
        for m in 0..M {
            for n in 0..N {
                for h in 0..2 {
                    f(m, n, h, ((m * N + n) * 2 + h) as u32 * 2 * QUAD_BYTES)
                }
            }
        }
    }
}

impl<T: SharedLayout, const S: usize, K: Kernel> Pipeline<T, S, CpAsync<Block<K>>> {
    /// Calls [`Pipeline::advance`] twice, with one refill each. Each of the two groups computes its `part`
    /// from the first stage, and receives the sum of both parts together with the second stage. Both groups
    /// get the same bits, because addition is commutative.
    #[inline(always)]
    pub fn advance_and_add<const R: usize, const M: usize, const N: usize>(
        &mut self,
        block: &mut Block<K>,
        (sums, rows, group): (&mut Sums<R, M, N>, WarpRows<R, M>, SplitGroup<2>),
        refills: (
            impl FnOnce(&T::Slot<CpAsync<Block<K>>>, &Block<K>),
            impl FnOnce(&T::Slot<CpAsync<Block<K>>>, &Block<K>),
        ),
        part: impl FnOnce(&T) -> Acc<M, N>,
    ) -> (Acc<M, N>, Ready<'_, T>) {
        const { assert!(K::THREADS as usize == R / M * 2 * 32, "every warp must have a partner") }
        let mut sum = part(&self.advance(block, refills.0));
        let mine = sums.of(rows, group);
        Sums::<R, M, N>::each(|m, n, h, at| {
            // SAFETY: these are this lane's words of the warp's own part. The partner has read the old words
            // before the first of the two barriers.
            unsafe { st_shared_v4_b32(mine + at, sum.0[m][n][h].map(f32::to_bits)) }
        });
        let ready = self.advance(block, refills.1);
        Sums::<R, M, N>::each(|m, n, h, at| {
            // SAFETY: the partner wrote these words between the two barriers, and writes them again only
            // after another barrier.
            let other = unsafe { ld_shared_v4_b32((mine ^ QUAD_BYTES) + at) };
            for i in 0..4 {
                sum.0[m][n][h][i] += f32::from_bits(other[i]);
            }
        });
        (sum, ready)
    }
}
