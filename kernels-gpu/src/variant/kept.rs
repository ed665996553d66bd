//! A Hopper kernel keeps nothing of its scores beside the softmax, or it keeps the largest score of each row.
use crate::sealed::Sealed;
use core::f32::consts::LN_2;
use cuda_std::math::in_order;
use spec::{And, Lse, MaximaParams};
use tile::Warp;
use tile::global::GlobalVec;
use tile::mma::{Acc, RowVec};

/// A warp keeps this state of its rows' scores, under a mask with parameters `X`. `()` keeps nothing.
pub trait Kept<X>: Copy + Sealed {
    /// The state before the first key.
    fn none() -> Self;

    /// Adds the scores of a block of keys.
    fn see<const N: usize>(&mut self, s: &Acc<1, N>);

    /// Adds a score of the row with this index in [`RowVec`].
    fn see_one(&mut self, x: f32, row: [usize; 2]);

    /// Stores the values of the rows from `row0` on, beside the LSE `at` in the vector `lse`. `scale_log2`
    /// converts scores to exponents of 2.
    fn store(self, params: &X, scale_log2: f32, at: (GlobalVec, &Lse), row0: u32, warp: Warp);
}

impl<X> Kept<X> for () {
    #[inline(always)]
    fn none() {}
    #[inline(always)]
    fn see<const N: usize>(&mut self, _: &Acc<1, N>) {}
    #[inline(always)]
    fn see_one(&mut self, _: f32, _: [usize; 2]) {}
    #[inline(always)]
    fn store(self, _: &X, _: f32, _: (GlobalVec, &Lse), _: u32, _: Warp) {}
}

/// The largest score of each row, among this lane's columns. NaN counts for nothing.
#[derive(Clone, Copy)]
pub struct LargestScores(RowVec<1>);

impl Sealed for LargestScores {}
impl<X> Kept<And<X, MaximaParams>> for LargestScores {
    #[inline(always)]
    fn none() -> Self {
        LargestScores(RowVec::splat(f32::NEG_INFINITY))
    }

    #[inline(always)]
    fn see<const N: usize>(&mut self, s: &Acc<1, N>) {
        self.0 = self.0.zip(s.lane_max(), f32::max);
    }

    /// `in_order` keeps the comparison next to the score's exponential. Without it, LLVM sinks all
    /// comparisons of a block below its last exponential, where nothing runs beside them.
    #[inline(always)]
    fn see_one(&mut self, x: f32, row: [usize; 2]) {
        self.0[row] = in_order(self.0[row].max(x));
    }

    #[inline(always)]
    fn store(
        self,
        params: &And<X, MaximaParams>,
        scale_log2: f32,
        (at, lse): (GlobalVec, &Lse),
        row0: u32,
        warp: Warp,
    ) {
        let rows = &params.b.rows;
        let natural = self.0.across(warp, f32::max).map(|x| x * scale_log2 * LN_2);
        at.beside(lse, rows).only_if(rows.base != 0).store_together(&natural, row0, warp);
    }
}
