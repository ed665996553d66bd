//! Exchanges the accumulators of warpgroups, each of which has some columns of the same 64 rows.
use crate::exchange::Scratch;
use crate::group::Warpgroup;
use crate::mma::{Acc, RowVec};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use cuda_std::memory::{ld_shared_v2_b32, ld_shared_v4_b32, st_shared_v2_b32};

/// An accumulator with `C` base tiles of columns that belongs to one of `W` warpgroups, with two values per
/// row.
pub struct PartOfRows<const C: usize, const W: usize> {
    warp: Warp,
    acc: Acc<1, C>,
    values: [RowVec<1>; 2],
}

impl<const W: usize> Warpgroup<W> {
    /// This warpgroup's part of all columns.
    #[inline(always)]
    pub fn part<const C: usize>(&self, acc: Acc<1, C>, values: [RowVec<1>; 2]) -> PartOfRows<C, W> {
        PartOfRows { warp: self.warp, acc, values }
    }
}

/// The columns of all warpgroups, side by side, and two values per row and warpgroup. All threads can read
/// them.
pub struct ExchangedParts<const C: usize, const W: usize> {
    base: u32,
}

impl<const C: usize, const W: usize> ExchangedParts<C, W> {
    /// Four words of padding per row, so that lanes that hold neighbouring rows access different banks.
    const ROW_BYTES: u32 = (W as u32 * C as u32 * 16 + 4) * 4;
    const ROWS: u32 = 64;
    const BYTES: u32 = Self::ROWS * (Self::ROW_BYTES + W as u32 * 8);

    #[inline(always)]
    fn value(&self, part: u32, row: u32) -> u32 {
        self.base + Self::ROWS * Self::ROW_BYTES + (part * Self::ROWS + row) * 8
    }

    /// Columns `4 * quad..` of a row for each of the quads, and the row's two values of each warpgroup.
    /// Out-of-range arguments read other columns or another row.
    #[inline(always)]
    pub fn quads<const P: usize>(&self, row: u32, quads: [u32; P]) -> ([[f32; 4]; P], [[f32; 2]; W]) {
        let (row, last) = (row.min(Self::ROWS - 1), (W * C) as u32 * 4 - 1);
        // SAFETY: every warpgroup has written its columns of all rows, and a barrier has passed. The words
        // lie in this shared memory; rows begin at multiples of 16 bytes, and values at multiples of 8.
        unsafe {
            let values = core::array::from_fn(|part| ld_shared_v2_b32(self.value(part as u32, row)));
            let at = self.base + row * Self::ROW_BYTES;
            let x = quads.map(|quad| ld_shared_v4_b32(at + quad.min(last) * 16));
            (x.map(|x| x.map(f32::from_bits)), values.map(|pair| pair.map(f32::from_bits)))
        }
    }
}

impl<P: Place> Scratch<P> {
    /// Exchanges the parts of `W` warpgroups. After a barrier, all threads can read all parts.
    #[inline(always)]
    pub fn exchange_parts<K: Kernel, const C: usize, const W: usize>(
        self,
        own: PartOfRows<C, W>,
        block: &mut Block<K>,
    ) -> ExchangedParts<C, W> {
        const { assert!(K::THREADS as usize == W * 128, "the warpgroups must make up the block") }
        const { assert!(ExchangedParts::<C, W>::BYTES as usize <= P::BYTES, "this memory is too small") }
        let all = ExchangedParts::<C, W> { base: self.base };
        let PartOfRows { warp, acc, values } = own;
        let (part, first) = (warp.index / 4, warp.index % 4 * 16);
        let at = all.base + first * ExchangedParts::<C, W>::ROW_BYTES + part * C as u32 * 64;
        acc.each_pair(warp, |row, column, lo, hi| {
            let at = at + row * ExchangedParts::<C, W>::ROW_BYTES + column * 4;
            // SAFETY: these are the warp's own rows and columns; the barrier follows.
            unsafe { st_shared_v2_b32(at, [lo, hi].map(f32::to_bits)) }
        });
        if warp.lane.is_multiple_of(4) {
            for r in 0..2 {
                let at = all.value(part, first + warp.lane / 4 + 8 * r as u32);
                // SAFETY: these are the words of the warp's own rows; the barrier follows.
                unsafe { st_shared_v2_b32(at, values.map(|v| v.0[0][r].to_bits())) }
            }
        }
        block.sync();
        all
    }
}
