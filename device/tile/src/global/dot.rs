//! Sums of products of two tensors' rows.
use crate::Warp;
use crate::global::{GlobalRows, LoadEight};
use crate::layout;

impl<E: LoadEight, const C: usize> GlobalRows<E, C> {
    /// The sum of the products of row `row` of both tensors, which have equal shapes. Four lanes have a row.
    /// 0 if the row does not exist.
    #[inline(always)]
    pub fn dot_by_quads(&self, other: &Self, row: u32, warp: Warp) -> f32 {
        let load = |of: &Self, i: usize| {
            let chunk = i as u32 * 4 + warp.lane % 4;
            if row >= of.rows || chunk >= of.chunks {
                return E::Bits::default();
            }
            let within = row as u64 * of.row_bytes as u64 + (chunk * layout::CHUNK) as u64;
            // SAFETY: row and chunk exist, and base and stride are multiples of 16, as `GlobalRows` promises.
            unsafe { E::load_bits(of.base.wrapping_add(within)) }
        };
        // All loads are in flight before the first sum. A row has 2 C chunks; an array of `C` has room for
        // them.
        let pairs: [_; C] = core::array::from_fn(|i| match i < C.div_ceil(2) {
            true => (load(self, i), load(other, i)),
            false => Default::default(),
        });
        let mut sum = 0.0;
        for (a, b) in &pairs[..C.div_ceil(2)] {
            let (a, b) = (E::widen(*a), E::widen(*b));
            (0..8).for_each(|j| sum += a[j] * b[j]);
        }
        warp.quad(sum, |a, b| a + b)
    }
}
