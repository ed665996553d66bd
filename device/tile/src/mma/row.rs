//! One value per row of a warp's tiles.
use crate::Warp;
use crate::mma::{AFrag, Mma, Part};
use core::ops::{Index, IndexMut};
use cuda_std::math;

/// One value for each of the warp's `16 * M` rows. A lane holds the values of its two rows per row tile;
/// four lanes hold the same values.
#[derive(Clone, Copy)]
pub struct RowVec<const M: usize>(pub(crate) [[f32; 2]; M]);

impl<const M: usize> RowVec<M> {
    /// A vector that has the value `x` for every row.
    #[inline(always)]
    pub fn splat(x: f32) -> Self {
        RowVec([[x; 2]; M])
    }

    /// Replaces each value `x` by `f(x)`.
    #[inline(always)]
    pub fn map(self, f: impl Fn(f32) -> f32) -> Self {
        RowVec(self.0.map(|t| t.map(&f)))
    }

    /// A vector whose values are `f(x, y)`, where `x` and `y` are the values of one row in `self` and
    /// `other`.
    #[inline(always)]
    pub fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        RowVec(core::array::from_fn(|m| core::array::from_fn(|r| f(self.0[m][r], other.0[m][r]))))
    }

    /// Computes `self * factor + plus`, rounded once.
    #[inline(always)]
    pub fn fma(self, factor: &Self, plus: &Self) -> Self {
        let of = |m: usize, r: usize| math::fma(self.0[m][r], factor.0[m][r], plus.0[m][r]);
        RowVec(core::array::from_fn(|m| core::array::from_fn(|r| of(m, r))))
    }

    /// Combines the values that the four lanes of a row have for this row.
    #[inline(always)]
    pub fn across(self, warp: Warp, f: impl Fn(f32, f32) -> f32) -> Self {
        self.map(|x| warp.quad(x, &f))
    }

    /// Combines this lane's values of all its rows.
    #[inline(always)]
    pub fn reduce(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut x = self.0[0][0];
        for m in 0..M {
            for r in 0..2 {
                x = f(x, self.0[m][r]);
            }
        }
        x
    }
}

/// Reads the value of a row by `[row tile, which of the lane's two rows]`.
impl<const M: usize> Index<[usize; 2]> for RowVec<M> {
    type Output = f32;
    #[inline(always)]
    fn index(&self, [tile, row]: [usize; 2]) -> &f32 {
        &self.0[tile][row]
    }
}

impl<const M: usize> IndexMut<[usize; 2]> for RowVec<M> {
    #[inline(always)]
    fn index_mut(&mut self, [tile, row]: [usize; 2]) -> &mut f32 {
        &mut self.0[tile][row]
    }
}

/// Sums of the rows of A operands. On tensor cores, a product with ones computes them.
#[derive(Clone, Copy)]
pub struct RowSum<const M: usize>(pub(crate) [[f32; 4]; M]);

impl<const M: usize> RowSum<M> {
    /// Sums that are zero.
    #[inline(always)]
    pub fn zero() -> Self {
        RowSum([[0.0; 4]; M])
    }

    /// Adds one part of the rows of `a` to the sums.
    #[inline(always)]
    pub fn add<E: Mma, const K: usize>(&mut self, a: &AFrag<E, M, K>, part: Part, warp: Warp) {
        for k in part.share(K) {
            for m in 0..M {
                E::add_rows(&mut self.0[m], a.registers[k][m], warp)
            }
        }
    }

    /// Multiplies row `r` by `v[r]`.
    #[inline(always)]
    pub fn scale(&mut self, v: &RowVec<M>) {
        for m in 0..M {
            for i in 0..4 {
                self.0[m][i] *= v.0[m][i / 2];
            }
        }
    }

    /// Adds `v[r]` to the sum of row `r`.
    #[inline(always)]
    pub fn add_to_each(&mut self, v: &RowVec<M>) {
        for m in 0..M {
            for i in 0..4 {
                self.0[m][i] += v.0[m][i / 2];
            }
        }
    }

    /// Adds the sums of `other`.
    #[inline(always)]
    pub fn merge(&mut self, other: &RowSum<M>) {
        for m in 0..M {
            for i in 0..4 {
                self.0[m][i] += other.0[m][i];
            }
        }
    }

    /// The sum of each row.
    #[inline(always)]
    pub fn total(&self) -> RowVec<M> {
        RowVec(self.0.map(|t| [t[0], t[2]]))
    }
}
