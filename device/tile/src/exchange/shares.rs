//! Exchanges columns before they are stored. Every warp of a block has a share of each column's rows.
use crate::exchange::Scratch;
use crate::exchange::joint_b::part;
use crate::group::SplitGroup;
use crate::mma::{ColAcc, ColVec, Stored};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use cuda_std::memory::{ld_shared_v2_b32, ld_shared_v4_b32, st_shared_b32, st_shared_v2_b32};

/// An accumulator of `R x G` tiles whose rows were distributed over the warps, and two values per column of
/// `K` row tiles. All threads can read both.
pub struct ExchangedShares<const R: usize, const G: usize, const K: usize> {
    base: u32,
}

impl<const R: usize, const G: usize, const K: usize> ExchangedShares<R, G, K> {
    const COLUMNS: u32 = G as u32 * 8;
    /// Four words of padding per column, as in [`crate::exchange::ExchangedColumns`].
    const COLUMN_BYTES: u32 = (R as u32 * 16 + 4) * 4;
    const BYTES: u32 = Self::COLUMNS * (Self::COLUMN_BYTES + K as u32 * 8);

    #[inline(always)]
    fn value(&self, k: u32, column: u32) -> u32 {
        self.base + Self::COLUMNS * Self::COLUMN_BYTES + (k * Self::COLUMNS + column) * 8
    }

    /// Rows `4 * quad..` of a column, and the two values of the column for each of its `K` row tiles.
    /// Out-of-range arguments read another column or other rows.
    #[inline(always)]
    pub fn quad(&self, column: u32, quad: u32) -> ([f32; 4], [[f32; 2]; K]) {
        // Other warps wrote these words; no thread writes them after the barrier.
        let (column, quad) = (column.min(Self::COLUMNS - 1), quad.min(R as u32 * 4 - 1));
        // SAFETY: every warp has written its share of all columns below the count, and a barrier has passed.
        // The words lie in this shared memory; columns begin at multiples of 16 bytes, and values at
        // multiples of 8.
        unsafe {
            let x = ld_shared_v4_b32(self.base + column * Self::COLUMN_BYTES + quad * 16);
            let values = core::array::from_fn(|k| ld_shared_v2_b32(self.value(k as u32, column)));
            (x.map(f32::from_bits), values.map(|pair| pair.map(f32::from_bits)))
        }
    }
}

impl<P: Place> Scratch<P> {
    /// Exchanges columns between warps, each of which is one split group. Each warp writes its `SHARE` of the
    /// `R` row tiles of columns below `columns`, and two values per column of its part of a
    /// [`crate::exchange::JointB`]. After a barrier, all warps can read all shares. The accumulator must be a
    /// product whose A operand was the transpose of a tile of `S`.
    #[inline(always)]
    pub fn exchange_shares<
        S: Stored,
        B: Kernel,
        const SHARE: usize,
        const R: usize,
        const G: usize,
        const OWN: usize,
        const K: usize,
        const WARPS: usize,
    >(
        self,
        (acc, values): (&ColAcc<SHARE, G>, [ColVec<f32, OWN>; 2]),
        columns: u32,
        group: SplitGroup<WARPS>,
        block: &mut Block<B>,
    ) -> ExchangedShares<R, G, K> {
        const {
            assert!(B::THREADS as usize == WARPS * 32 && SHARE * WARPS == R, "each warp must have a share");
            assert!(WARPS * OWN == K * G, "the warps' parts must make up the columns of all row tiles");
            assert!(ExchangedShares::<R, G, K>::BYTES as usize <= P::BYTES, "this memory is too small");
        }
        let left = ExchangedShares::<R, G, K> { base: self.base };
        let (Warp { lane, .. }, [k, first]) = (block.warp(), part::<K, OWN>(block.warp()));
        let (own, other) = if S::PAIRED { (8, 4) } else { (4, 32) };
        for g in 0..G {
            for c in 0..2 {
                let column = (g * 8 + c) as u32 + lane % 4 * 2;
                if column < columns {
                    let at = left.base
                        + column * ExchangedShares::<R, G, K>::COLUMN_BYTES
                        + group.index() * SHARE as u32 * 64
                        + lane / 4 * own;
                    for r in 0..SHARE {
                        for h in 0..2 {
                            let x = acc.0[r][g][2 * h + c].to_bits();
                            // SAFETY: these are the warp's own rows; the barrier follows.
                            unsafe { st_shared_b32(at + r as u32 * 64 + h as u32 * other, x) }
                        }
                    }
                }
            }
        }
        if lane < 4 {
            for g in 0..OWN {
                for c in 0..2 {
                    let column = (first + g as u32) * 8 + lane * 2 + c as u32;
                    let pair = [0, 1].map(|i| values[i].0[g][c].to_bits());
                    // SAFETY: this is the warp's own part of the columns of its row tile; the barrier
                    // follows.
                    unsafe { st_shared_v2_b32(left.value(k, column), pair) }
                }
            }
        }
        block.sync();
        left
    }
}
