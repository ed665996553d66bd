//! Values per row that a warp keeps in shared memory, where they take no registers.
use crate::Block;
use crate::group::ThreadGroup;
use crate::mma::RowVec;
use crate::shared::Place;
use contract::Kernel;
use cuda_std::memory::{ld_shared_v2_b32, st_shared_v2_b32};

/// Shared memory for `COUNT` values per row of `R` row tiles, `M` per warp. Each lane keeps its own words.
pub struct RowPlace<const R: usize, const M: usize, const COUNT: usize> {
    base: u32,
}

/// `COUNT` values per row of a warp.
pub struct KeptRows<const R: usize, const M: usize, const COUNT: usize> {
    /// The shared address of this lane's first words.
    at: u32,
}

// SAFETY: the layout has 8 bytes per lane for each value and row tile.
unsafe impl<const R: usize, const M: usize, const COUNT: usize> Place for RowPlace<R, M, COUNT> {
    const BYTES: usize = R * COUNT * 256;
    const ALIGN: usize = 8;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        RowPlace { base }
    }
}

impl<const R: usize, const M: usize, const COUNT: usize> RowPlace<R, M, COUNT> {
    /// Keeps the values of the warp's rows.
    #[inline(always)]
    pub fn keep<C: Kernel>(self, values: [RowVec<M>; COUNT], block: &Block<C>) -> KeptRows<R, M, COUNT> {
        const { assert!(C::THREADS as usize == R / M * 32, "each warp must have its own part") }
        let rows = KeptRows { at: self.base + block.member() * 8 };
        for (i, value) in values.iter().enumerate() {
            for m in 0..M {
                // SAFETY: these are this lane's words of shared memory that belongs to `self` alone.
                unsafe { st_shared_v2_b32(rows.word(i, m), value.0[m].map(f32::to_bits)) }
            }
        }
        rows
    }
}

impl<const R: usize, const M: usize, const COUNT: usize> KeptRows<R, M, COUNT> {
    #[inline(always)]
    fn word(&self, i: usize, m: usize) -> u32 {
        self.at + ((i * M + m) * (R / M) * 256) as u32
    }

    /// The values of each row.
    #[inline(always)]
    pub fn load(&self) -> [RowVec<M>; COUNT] {
        core::array::from_fn(|i| {
            // SAFETY: this lane has written the words in `keep`, and no other lane has written them.
            let pair = |m| unsafe { ld_shared_v2_b32(self.word(i, m)) };
            RowVec(core::array::from_fn(|m| pair(m).map(f32::from_bits)))
        })
    }
}
