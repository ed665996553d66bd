//! Products with few columns: the rows of a shared tile fill the 16 rows of an `mma`, and the other operand
//! fills its 8 columns. For up to 8 columns, this takes half the products and half the accumulators that
//! [`Acc`](crate::mma::Acc) takes.
//!
//! `R` counts base tiles of rows, and `G` counts groups of 8 columns. In each group, a lane holds column
//! `lane % 4 * 2` and the next column.
use crate::Warp;
use crate::mma::{OperandB, PartB, Stored, TensorCore};
use crate::shared::SharedTile;
use contract::{Bf16, F16};
use core::marker::PhantomData;
use core::ops::Index;
use cuda_std::ldmatrix::movmatrix_trans;
use cuda_std::math::{pack_f16, unpack_bf16};

/// An accumulator in f32: `[row tile][column group][register]`. The registers are those of
/// [`crate::layout::acc_element`].
#[derive(Clone, Copy)]
pub struct ColAcc<const R: usize, const G: usize>(pub(crate) [[[f32; 4]; G]; R]);

/// A B operand: `[k-step][column group][register]`.
#[derive(Clone, Copy)]
pub struct ColFrag<E, const K: usize, const G: usize>(
    pub(crate) [[[u32; 2]; G]; K],
    pub(crate) PhantomData<E>,
);

/// One value per column. Eight lanes hold the same columns.
#[derive(Clone, Copy)]
pub struct ColVec<T, const G: usize>(pub(crate) [[T; 2]; G]);

/// Sums of the columns of B operands, computed as a product with ones.
#[derive(Clone, Copy)]
pub struct ColSum<const G: usize>([[f32; 4]; G]);

impl<T: Copy, const G: usize> ColVec<T, G> {
    /// A vector that has the value `x` for every column.
    #[inline(always)]
    pub fn splat(x: T) -> Self {
        ColVec([[x; 2]; G])
    }

    /// A vector whose values are `f(index of the column)`.
    #[inline(always)]
    pub fn from_fn(warp: Warp, f: impl Fn(u32) -> T) -> Self {
        let first = warp.lane % 4 * 2;
        ColVec(core::array::from_fn(|g| core::array::from_fn(|i| f(g as u32 * 8 + first + i as u32))))
    }

    /// Replaces each value `x` by `f(x)`.
    #[inline(always)]
    pub fn map<V: Copy>(self, f: impl Fn(T) -> V) -> ColVec<V, G> {
        ColVec(self.0.map(|t| t.map(&f)))
    }

    /// A vector whose values are `f(x, y)`, where `x` and `y` are the values of one column in `self` and
    /// `other`.
    #[inline(always)]
    pub fn zip<U: Copy, V: Copy>(self, other: ColVec<U, G>, f: impl Fn(T, U) -> V) -> ColVec<V, G> {
        ColVec(core::array::from_fn(|g| core::array::from_fn(|i| f(self.0[g][i], other.0[g][i]))))
    }

    /// Combines this lane's values of all its columns.
    #[inline(always)]
    pub fn reduce(self, f: impl Fn(T, T) -> T) -> T {
        let mut x = f(self.0[0][0], self.0[0][1]);
        for g in 1..G {
            x = f(x, f(self.0[g][0], self.0[g][1]));
        }
        x
    }
}

impl<const G: usize> ColVec<f32, G> {
    /// Combines the values that the eight lanes of a column have for this column.
    #[inline(always)]
    pub fn across(self, warp: Warp, f: impl Fn(f32, f32) -> f32) -> Self {
        ColVec(self.0.map(|t| t.map(|x| warp.octet(x, &f))))
    }
}

/// Reads the value of a column by `[column group, which of the lane's two columns]`.
impl<T, const G: usize> Index<[usize; 2]> for ColVec<T, G> {
    type Output = T;
    #[inline(always)]
    fn index(&self, [group, column]: [usize; 2]) -> &T {
        &self.0[group][column]
    }
}

/// Rows of 32-bit words in global memory that become columns of a B operand.
pub trait WordRows {
    /// Returns a function that loads word `from + i` of row `row`; it returns 0 if the word does not exist.
    fn words(&self, row: u32, from: u32, warp: Warp) -> impl Fn(u32) -> u32 + Copy;
}

/// An element type whose rows become B operands of type `A`.
pub trait LoadAs<A: TensorCore>: TensorCore {
    /// Whether products with such operands need a factor other than 1.
    const SCALED: bool;
    /// Converts the words of one column. Four lanes share a column, and each of them holds two words of the
    /// column per k-step. Returns the operand, and the factor for products with this operand.
    fn convert<const K: usize>(words: [[u32; 2]; K], warp: Warp) -> ([[u32; 2]; K], f32);
}

impl<E: TensorCore> LoadAs<E> for E {
    const SCALED: bool = false;
    #[inline(always)]
    fn convert<const K: usize>(words: [[u32; 2]; K], _: Warp) -> ([[u32; 2]; K], f32) {
        (words, 1.0)
    }
}

/// Converts bf16 to f16, scaled by a power of two to the row's largest element. The conversion is exact,
/// except for elements below 2^-28 of the largest element.
impl LoadAs<F16> for Bf16 {
    const SCALED: bool = true;
    #[inline(always)]
    fn convert<const K: usize>(words: [[u32; 2]; K], warp: Warp) -> ([[u32; 2]; K], f32) {
        let pairs = words.map(|step| step.map(unpack_bf16));
        let largest = pairs.as_flattened().as_flattened().iter().fold(0.0, |a: f32, x| a.max(x.abs()));
        // The exponent of the largest element becomes 14, the second largest exponent of f16.
        let exponent = (warp.quad(largest, f32::max).to_bits() >> 23).max(15);
        let [scale, inverse] = [268 - exponent, exponent - 14].map(|bits| f32::from_bits(bits << 23));
        (pairs.map(|step| step.map(|[lo, hi]| pack_f16(lo * scale, hi * scale))), inverse)
    }
}

impl<E: TensorCore, const K: usize, const G: usize> ColFrag<E, K, G> {
    /// Loads the transpose of `rows`, rows in global memory with elements of type `Q`. Returns the operand
    /// and one factor per column for products with it. The k-steps of the operand have the column order of
    /// shared tiles with elements of type `S`. Rows and columns that do not exist are zero.
    #[inline(always)]
    pub fn load<Q: LoadAs<E>, S: Stored<As = E>>(rows: &impl WordRows, warp: Warp) -> (Self, ColVec<f32, G>) {
        let (mut to, mut factors) = ([[[0; 2]; G]; K], [1.0; G]);
        for g in 0..G {
            let row = g as u32 * 8 + warp.lane / 4;
            let from = [0, 1].map(|i| {
                let [first, lane] = S::right_word(0, i);
                rows.words(row, first + warp.lane % 4 * lane, warp)
            });
            let word = |k, i: usize| from[i](S::right_word(k, i)[0] - S::right_word(0, i)[0]);
            let words = core::array::from_fn(|k| [word(k, 0), word(k, 1)]);
            let (words, factor) = Q::convert::<K>(words, warp);
            factors[g] = factor;
            for k in 0..K {
                to[k][g] = words[k];
            }
        }
        if !Q::SCALED {
            return (ColFrag(to, PhantomData), ColVec::splat(1.0));
        }
        // The lane has loaded row `lane / 4`. The lane holds products of column `lane % 4 * 2` and the next
        // column.
        let factors = core::array::from_fn(|g| {
            [0, 1].map(|i| {
                let lane = (warp.lane % 4 * 2 + i) * 4;
                f32::from_bits(warp.shuffle(factors[g].to_bits(), lane))
            })
        });
        (ColFrag(to, PhantomData), ColVec(factors))
    }
}

impl<const G: usize> ColAcc<1, G> {
    /// Computes `a b`; the 16 rows of `a` are in shared memory. Products alternate between two accumulators,
    /// so that no product waits for the previous one.
    #[inline(always)]
    pub fn product<S: Stored, const K: usize>(
        a: &SharedTile<S, 1, K>,
        b: &OperandB<S::As, K, G>,
        warp: Warp,
    ) -> Self {
        Self::chains::<S, 1, K, 2>(a, 0, |k| b.k_step(k), warp)
    }

    /// Computes `a b`, where `a` is row tile `n` of a larger tile, and `b` is the warp's part of a B operand.
    #[inline(always)]
    pub fn product_of<S: Stored, const N: usize, const K: usize, const ALL: usize, const HELD: bool>(
        a: &SharedTile<S, N, K>,
        n: u32,
        b: &PartB<S::As, K, ALL, G, HELD>,
        warp: Warp,
    ) -> Self {
        // A row tile that does not exist is replaced by another row tile.
        let first = n % N as u32 * 16;
        // Four groups are enough independent chains: with two chains per group, the kernel spills.
        if G < 4 {
            Self::chains::<S, N, K, 2>(a, first, |k| b.k_step(k), warp)
        } else {
            Self::chains::<S, N, K, 1>(a, first, |k| b.k_step(k), warp)
        }
    }

    /// The product of 16 rows of `a` from row `first` on, in `CHAINS` chains that are summed at the end.
    #[inline(always)]
    fn chains<S: Stored, const N: usize, const K: usize, const CHAINS: usize>(
        a: &SharedTile<S, N, K>,
        first: u32,
        b: impl Fn(usize) -> [[u32; 2]; G],
        warp: Warp,
    ) -> Self {
        let mut chains = [Self::zero(); CHAINS];
        S::rows(a, first, warp, |k, a| {
            let b = b(k);
            for g in 0..G {
                // SAFETY: `Warp` stands for 32 converged lanes.
                unsafe { S::As::mma(&mut chains[k % CHAINS].0[0][g], a, b[g]) }
            }
        });
        let mut sum = chains[0];
        for i in 1..CHAINS {
            sum.each(|r, g, j, x| *x += chains[i].0[r][g][j]);
        }
        sum
    }
}

impl<const R: usize, const G: usize> ColAcc<R, G> {
    /// An accumulator of zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        ColAcc([[[0.0; 4]; G]; R])
    }

    /// Computes `self += a^T b`; the 16 rows of `a` are in shared memory.
    #[inline(always)]
    pub fn add_transposed<S: Stored>(
        &mut self,
        a: &SharedTile<S, 1, R>,
        b: &ColFrag<S::As, 1, G>,
        warp: Warp,
    ) {
        self.add_transposed_of(a, 0, b, warp)
    }

    /// Computes `self += a^T b`, where `a` is row tile `n` of a larger tile.
    #[inline(always)]
    pub fn add_transposed_of<S: Stored, const N: usize>(
        &mut self,
        a: &SharedTile<S, N, R>,
        n: usize,
        b: &ColFrag<S::As, 1, G>,
        warp: Warp,
    ) {
        S::columns(a, n, warp, |r, a| {
            for g in 0..G {
                // SAFETY: `Warp` stands for 32 converged lanes.
                unsafe { S::As::mma(&mut self.0[r][g], a, b.0[0][g]) }
            }
        });
    }

    /// Replaces each value `x` by `f(x)`.
    #[inline(always)]
    pub fn map(&mut self, f: impl Fn(f32) -> f32) {
        self.each(|_, _, _, x| *x = f(*x));
    }

    /// Replaces each value `x` by `f(x, column, row)`, where `first` is the index of the first row. Columns
    /// are indexed as in [`ColVec`].
    #[inline(always)]
    pub fn map_at(&mut self, first: u32, warp: Warp, f: impl Fn(f32, [usize; 2], i32) -> f32) {
        let first = (first + warp.lane / 4) as i32;
        self.each(|r, g, i, x| *x = f(*x, [g, i % 2], first + (r * 16 + i / 2 * 8) as i32));
    }

    /// Multiplies column `c` by `v[c]`.
    #[inline(always)]
    pub fn scale_columns(&mut self, v: &ColVec<f32, G>) {
        self.each(|_, g, i, x| *x *= v.0[g][i % 2]);
    }

    /// Keeps rows `first..end[c]` of column `c`, where `first` is the index of the first row. All other
    /// values become minus infinity.
    #[inline(always)]
    pub fn keep_before(&mut self, end: &ColVec<i32, G>, first: u32, warp: Warp) {
        let first = (first + warp.lane / 4) as i32;
        self.each(|r, g, i, x| {
            if (r * 16 + i / 2 * 8) as i32 >= end.0[g][i % 2] - first {
                *x = f32::NEG_INFINITY
            }
        });
    }

    /// Keeps rows `start[c]..` of column `c`. All other values become minus infinity.
    #[inline(always)]
    pub fn keep_from(&mut self, start: &ColVec<i32, G>, first: u32, warp: Warp) {
        let first = (first + warp.lane / 4) as i32;
        self.each(|r, g, i, x| {
            if ((r * 16 + i / 2 * 8) as i32) < start.0[g][i % 2] - first {
                *x = f32::NEG_INFINITY
            }
        });
    }

    /// The largest value of each column among this lane's rows.
    #[inline(always)]
    pub fn lane_max(&self) -> ColVec<f32, G> {
        ColVec(core::array::from_fn(|g| {
            core::array::from_fn(|c| {
                let mut x = self.0[0][g][c].max(self.0[0][g][c + 2]);
                for r in 1..R {
                    x = x.max(self.0[r][g][c].max(self.0[r][g][c + 2]));
                }
                x
            })
        }))
    }

    /// Returns `f(value, column)` as the B operand of the next product, whose k runs along the rows. Columns
    /// are indexed as in [`ColVec`].
    #[inline(always)]
    pub fn to_operand<E: TensorCore>(
        &self,
        _warp: Warp,
        f: impl Fn(f32, [usize; 2]) -> f32,
    ) -> ColFrag<E, R, G> {
        ColFrag(
            core::array::from_fn(|r| {
                core::array::from_fn(|g| {
                    core::array::from_fn(|h| {
                        let [lo, hi] = [0, 1].map(|c| f(self.0[r][g][2 * h + c], [g, c]));
                        // SAFETY: `Warp` stands for 32 converged lanes.
                        unsafe { movmatrix_trans(E::pack(lo, hi)) }
                    })
                })
            }),
            PhantomData,
        )
    }

    #[inline(always)]
    pub(super) fn each(&mut self, mut f: impl FnMut(usize, usize, usize, &mut f32)) {
        for r in 0..R {
            for g in 0..G {
                for i in 0..4 {
                    f(r, g, i, &mut self.0[r][g][i])
                }
            }
        }
    }
}

impl<const G: usize> ColSum<G> {
    /// Sums that are zero.
    #[inline(always)]
    pub fn zero() -> Self {
        ColSum([[0.0; 4]; G])
    }

    /// Adds the columns of `b`.
    #[inline(always)]
    pub fn add<E: TensorCore, const K: usize>(&mut self, b: &ColFrag<E, K, G>, _warp: Warp) {
        for k in 0..K {
            for g in 0..G {
                // SAFETY: `Warp` stands for 32 converged lanes.
                unsafe { E::mma(&mut self.0[g], [E::ONES; 4], b.0[k][g]) }
            }
        }
    }

    /// Adds this lane's rows of `x`. [`ColSum::gather`] must follow the last addition.
    #[inline(always)]
    pub fn add_lanes<const R: usize>(&mut self, x: &ColAcc<R, G>) {
        for g in 0..G {
            for c in 0..2 {
                for r in 0..R {
                    self.0[g][c] += x.0[r][g][c] + x.0[r][g][c + 2];
                }
            }
        }
    }

    /// Sums all lanes' rows.
    #[inline(always)]
    pub fn gather(&mut self, warp: Warp) {
        for g in 0..G {
            for c in 0..2 {
                self.0[g][c] = warp.octet(self.0[g][c], |x, y| x + y);
            }
        }
    }

    /// Multiplies the sum of column `c` by `v[c]`.
    #[inline(always)]
    pub fn scale(&mut self, v: &ColVec<f32, G>) {
        for g in 0..G {
            for i in 0..4 {
                self.0[g][i] *= v.0[g][i % 2];
            }
        }
    }

    /// The sum of each column.
    #[inline(always)]
    pub fn total(&self) -> ColVec<f32, G> {
        ColVec(self.0.map(|t| [t[0], t[1]]))
    }
}
