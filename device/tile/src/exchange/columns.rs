//! Exchanges columns between warps. Every warp of a block contributes to each column.
use crate::exchange::Scratch;
use crate::group::SplitGroup;
use crate::mma::{ColAcc, ColVec, Stored};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use cuda_std::memory::{ld_shared_v2_b32, ld_shared_v4_b32, st_shared_b32};

/// The accumulators of `R x G` tiles of all `WARPS` warps, with two values per column. All warps can read
/// them.
pub struct ExchangedColumns<const R: usize, const G: usize, const WARPS: usize> {
    base: u32,
}

impl<const R: usize, const G: usize, const WARPS: usize> ExchangedColumns<R, G, WARPS> {
    const COLUMNS: u32 = G as u32 * 8;
    /// Four words of padding per column, so that lanes that hold neighbouring columns access different banks.
    const COLUMN_BYTES: u32 = (R as u32 * 16 + 4) * 4;
    const ACCS_BYTES: u32 = WARPS as u32 * Self::COLUMNS * Self::COLUMN_BYTES;
    const BYTES: u32 = Self::ACCS_BYTES + WARPS as u32 * Self::COLUMNS * 8;

    #[inline(always)]
    fn column(&self, warp: u32, column: u32) -> u32 {
        self.base + (warp * Self::COLUMNS + column) * Self::COLUMN_BYTES
    }

    #[inline(always)]
    fn value(&self, warp: u32, column: u32) -> u32 {
        self.base + Self::ACCS_BYTES + (warp * Self::COLUMNS + column) * 8
    }

    /// For each warp, calls `f` with rows `4 * quad..` of a column and with the column's two values.
    /// Out-of-range arguments read another column or other rows.
    #[inline(always)]
    pub fn quads<T>(&self, column: u32, quad: u32, f: impl Fn([f32; 4], [f32; 2]) -> T) -> [T; WARPS] {
        // Other warps wrote these words; no thread writes them after the barrier.
        let (column, quad) = (column.min(Self::COLUMNS - 1), quad.min(R as u32 * 4 - 1));
        core::array::from_fn(|warp| {
            // SAFETY: every warp has written all columns below the count, and a barrier has passed. The words
            // lie in this shared memory; columns begin at multiples of 16 bytes, and values at multiples of
            // 8.
            let (x, values) = unsafe {
                (
                    ld_shared_v4_b32(self.column(warp as u32, column) + quad * 16),
                    ld_shared_v2_b32(self.value(warp as u32, column)),
                )
            };
            f(x.map(f32::from_bits), values.map(f32::from_bits))
        })
    }
}

impl<P: Place> Scratch<P> {
    /// Exchanges columns between warps, each of which is one split group. Each warp writes its columns below
    /// `columns`, with two values per column. After a barrier, all warps can read all columns. The
    /// accumulator must be a product whose A operand was the transpose of a tile of `S`.
    #[inline(always)]
    pub fn exchange_columns<S: Stored, K: Kernel, const R: usize, const G: usize, const WARPS: usize>(
        self,
        (acc, values): (&ColAcc<R, G>, [ColVec<f32, G>; 2]),
        columns: u32,
        group: SplitGroup<WARPS>,
        block: &mut Block<K>,
    ) -> ExchangedColumns<R, G, WARPS> {
        const {
            assert!(K::THREADS as usize == WARPS * 32, "each warp must be a split group");
            assert!(ExchangedColumns::<R, G, WARPS>::BYTES as usize <= P::BYTES, "this memory is too small");
        }
        let left = ExchangedColumns { base: self.base };
        let (Warp { lane, .. }, warp) = (block.warp(), group.index());
        for g in 0..G {
            for c in 0..2 {
                let column = (g * 8 + c) as u32 + lane % 4 * 2;
                if column < columns {
                    let (own, other) = if S::PAIRED { (8, 4) } else { (4, 32) };
                    let at = left.column(warp, column) + lane / 4 * own;
                    for r in 0..R {
                        for h in 0..2 {
                            let x = acc.0[r][g][2 * h + c].to_bits();
                            // SAFETY: the warp writes its own part of shared memory that belongs to `self`
                            // alone; the barrier follows.
                            unsafe { st_shared_b32(at + r as u32 * 64 + h as u32 * other, x) }
                        }
                    }
                    if lane < 4 {
                        let at = left.value(warp, column);
                        for i in 0..2 {
                            // SAFETY: the reason above holds here too.
                            unsafe { st_shared_b32(at + i as u32 * 4, values[i].0[g][c].to_bits()) }
                        }
                    }
                }
            }
        }
        block.sync();
        left
    }
}
