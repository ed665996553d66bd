//! Register fragments of one warp, of `M` row tiles by `N` column tiles of 16x16 elements.
use crate::group::WarpRows;
use crate::mma::{Mma, RowVec};
use crate::shared::SharedTile;
use crate::shared::reader::Reader;
use crate::{Warp, layout};
use core::marker::PhantomData;
use cuda_std::ldmatrix::ldmatrix_x4;
use cuda_std::math::{fma, in_order, in_order_b32, opaque};

/// An accumulator in f32 (C and D of m16n8k16): `[row tile][column tile][8-column half][register]`. The
/// registers are those of [`layout::acc_element`].
#[derive(Clone, Copy)]
pub struct Acc<const M: usize, const N: usize>(pub(crate) [[[[f32; 4]; 2]; N]; M]);

/// One column for each of the warp's `16 * M` rows, relative to each lane's first column, so that an element
/// is compared with a constant.
#[derive(Clone, Copy)]
pub struct RowBounds<const M: usize>([[i32; 2]; M]);

/// An A operand (A of m16n8k16) in registers: `[k-step][row tile]`.
#[derive(Clone, Copy)]
pub struct AFrag<E, const M: usize, const K: usize> {
    pub(crate) registers: [[[u32; 4]; M]; K],
    element: PhantomData<E>,
}

/// An A operand of a warp: `M` row tiles of a shared tile of `R x K` base tiles. The operand borrows the
/// tile. The first `HELD` k-steps stay in registers; each use loads the other k-steps again.
#[derive(Clone, Copy)]
pub struct Resident<'t, E, const R: usize, const M: usize, const K: usize, const HELD: usize> {
    held: [[[u32; 4]; M]; HELD],
    rest: Reader<E, R, K>,
    /// The shared address of the warp's first row.
    pub(crate) first_row: u32,
    tile: PhantomData<&'t SharedTile<E, R, K>>,
}

/// Step `at` of a product that has `of` steps. A product distributes other work over its steps, which fills
/// the issue slots between tensor-core instructions. ptxas schedules freely within a basic block, but starts
/// from the order of the source.
#[derive(Clone, Copy)]
pub struct Part {
    pub(crate) at: usize,
    pub(crate) of: usize,
}
impl Part {
    /// The only step, for work that is not distributed over steps.
    pub const ALL: Part = Part { at: 0, of: 1 };

    /// The indices of those of `total` items that belong to this step.
    #[inline(always)]
    pub fn share(self, total: usize) -> core::ops::Range<usize> {
        (self.at * total).div_ceil(self.of)..((self.at + 1) * total).div_ceil(self.of)
    }
}

#[inline(always)]
fn load_k_step<E: Mma, const R: usize, const M: usize, const K: usize>(
    reader: &Reader<E, R, K>,
    k: usize,
) -> [[u32; 4]; M] {
    // SAFETY: readers come from a readable tile and a `Warp` (32 converged lanes), and they address rows of
    // that tile.
    core::array::from_fn(|m| unsafe { ldmatrix_x4(reader.tile(m, k)) })
}

impl<E, const M: usize, const K: usize> AFrag<E, M, K> {
    /// An operand of zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        AFrag { registers: [[[0; 4]; M]; K], element: PhantomData }
    }

    /// Copies the operand to other registers.
    #[inline(always)]
    pub(crate) fn copied(&self) -> Self {
        AFrag {
            registers: self.registers.map(|step| step.map(|tile| tile.map(opaque))),
            element: PhantomData,
        }
    }

    /// Keeps the warp's rows before row `end`. All other rows become 0, whatever they were.
    #[inline(always)]
    pub(crate) fn keep_rows_before(&mut self, end: i32, warp: Warp) {
        let [row, _] = layout::acc_element(warp.lane, 0).map(|x| x as i32);
        for m in 0..M {
            let kept = [0, 8].map(|half| ((row + half + m as i32 * 16 - end) >> 31) as u32);
            for k in 0..K {
                for (i, x) in self.registers[k][m].iter_mut().enumerate() {
                    *x &= kept[i % 2];
                }
            }
        }
    }
}

impl<'t, E: Mma, const R: usize, const M: usize, const K: usize, const HELD: usize>
    Resident<'t, E, R, M, K, HELD>
{
    /// Loads the rows `rows` of `tile`.
    #[inline(always)]
    pub fn load(tile: &'t SharedTile<E, R, K>, rows: WarpRows<R, M>) -> Self {
        const { assert!(HELD <= K, "no more k-steps can be held than there are") }
        let rest = tile.columns_first(rows.first(), rows.warp());
        Resident {
            held: core::array::from_fn(|k| load_k_step(&rest, k)),
            rest,
            first_row: tile.base + SharedTile::<E, R, K>::offset(rows.first(), 0),
            tile: PhantomData,
        }
    }

    /// The registers of k-step `k`.
    #[inline(always)]
    pub(crate) fn k_step(&self, k: usize) -> [[u32; 4]; M] {
        if k < HELD { self.held[k] } else { load_k_step(&self.rest, k) }
    }
}

impl<const M: usize> RowBounds<M> {
    /// Makes bounds in which each row has the column `of(row)`. Rows and columns count from the warp's first.
    #[inline(always)]
    pub fn new(of: impl Fn(u32) -> i32, warp: Warp) -> Self {
        RowBounds(core::array::from_fn(|m| {
            [0, 2].map(|i| {
                let [row, column] = layout::acc_element(warp.lane, i);
                of(m as u32 * 16 + row) - column as i32
            })
        }))
    }

    /// These columns, relative to column `column`.
    #[inline(always)]
    pub fn minus(&self, column: i32) -> Self {
        RowBounds(self.0.map(|rows| rows.map(|x| x.saturating_sub(column))))
    }

    /// The smallest column among the lane's rows in the first row tile.
    #[inline(always)]
    pub fn first(&self) -> i32 {
        self.0[0][0].min(self.0[0][1])
    }

    /// The largest column among the lane's rows in the last row tile.
    #[inline(always)]
    pub fn last(&self) -> i32 {
        self.0[M - 1][0].max(self.0[M - 1][1])
    }
}

impl<const M: usize, const N: usize> Acc<M, N> {
    /// Keeps the warp's rows before row `end`. All other rows become 0, whatever they were.
    #[inline(always)]
    pub fn keep_rows_before(&mut self, end: i32, warp: Warp) {
        let [row, _] = layout::acc_element(warp.lane, 0).map(|x| x as i32);
        self.each(|m, _, _, i, x| {
            if row + m as i32 * 16 + i as i32 / 2 * 8 >= end {
                *x = 0.0;
            }
        });
    }

    /// An accumulator of zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        Acc([[[[0.0; 4]; 2]; N]; M])
    }

    /// An accumulator without defined values, for a product that overwrites it.
    #[inline(always)]
    pub fn unset() -> Self {
        Self::zero()
    }

    /// An accumulator of zeros that the compiler does not know: LLVM would peel off the first round of a loop
    /// that starts with constants.
    #[inline(always)]
    pub fn cleared() -> Self {
        let mut acc = Self::unset();
        acc.each(|_, _, _, _, x| *x = f32::from_bits(opaque(0)));
        acc
    }

    /// Replaces each value `x` by `f(x)`.
    #[inline(always)]
    pub fn map(&mut self, f: impl Fn(f32) -> f32) {
        self.each(|_, _, _, _, x| *x = f(*x));
    }

    /// Multiplies row `r` by `v[r]`.
    #[inline(always)]
    pub fn scale_rows(&mut self, v: &RowVec<M>) {
        self.each(|m, _, _, i, x| *x *= v.0[m][i / 2]);
    }

    /// Multiplies row `r` by `v[r]`, and adds `add[r]`.
    #[inline(always)]
    pub fn fma_rows(&mut self, v: &RowVec<M>, add: &RowVec<M>) {
        self.each(|m, _, _, i, x| *x = fma(*x, v.0[m][i / 2], add.0[m][i / 2]));
    }

    /// The largest value of each row among this lane's columns.
    #[inline(always)]
    pub fn lane_max(&self) -> RowVec<M> {
        let mut r = RowVec([[f32::NEG_INFINITY; 2]; M]);
        for n in 0..N {
            for h in 0..2 {
                for m in 0..M {
                    for i in 0..2 {
                        let t = &self.0[m][n][h];
                        r.0[m][i] = r.0[m][i].max(t[2 * i].max(t[2 * i + 1]));
                    }
                }
            }
        }
        r
    }

    /// Replaces each value `x` by `f(x, y)`, where `y` is the value of `other` at its place.
    #[inline(always)]
    pub fn zip(&mut self, other: &Self, f: impl Fn(f32, f32) -> f32) {
        self.each(|m, n, h, i, x| *x = f(*x, other.0[m][n][h][i]));
    }

    /// Keeps the columns before each row's `end`. All other values become minus infinity.
    #[inline(always)]
    pub fn keep_before(&mut self, end: &RowBounds<M>) {
        self.each(|m, n, h, i, x| {
            if Self::column(n, h, i) >= end.0[m][i / 2] {
                *x = f32::NEG_INFINITY
            }
        });
    }

    /// Keeps the columns from each row's `start` on. All other values become minus infinity.
    #[inline(always)]
    pub fn keep_from(&mut self, start: &RowBounds<M>) {
        self.each(|m, n, h, i, x| {
            if Self::column(n, h, i) < start.0[m][i / 2] {
                *x = f32::NEG_INFINITY
            }
        });
    }

    /// Keeps the columns whose bits are set: bit `i` of word `w` is column `32 * w + i`. All other values
    /// become minus infinity.
    #[inline(always)]
    pub fn keep_columns<const WORDS: usize>(&mut self, bits: [u32; WORDS], warp: Warp) {
        const { assert!(N == 2 * WORDS, "each column must have a bit") }
        let mine = bits.map(|word| word >> (warp.lane % 4 * 2));
        self.each(|_, n, h, i, x| {
            let column = Self::column(n, h, i) as usize;
            if mine[column / 32] >> (column % 32) & 1 == 0 {
                *x = f32::NEG_INFINITY
            }
        });
    }

    /// Replaces each value by `f(value, distance)`. The distance is the number of columns from the element to
    /// its row's column in `from`. The distance is negative if the element is behind this column.
    #[inline(always)]
    pub fn map_distances(&mut self, from: &RowBounds<M>, f: impl Fn(f32, f32) -> f32) {
        let from = from.0.map(|rows| rows.map(|column| column as f32));
        self.each(|m, n, h, i, x| *x = f(*x, from[m][i / 2] - Self::column(n, h, i) as f32));
    }

    /// Replaces each value by `f(value, row, column)`. The first row and column are `first`.
    #[inline(always)]
    pub fn map_at(&mut self, first: [i32; 2], warp: Warp, f: impl Fn(f32, i32, i32) -> f32) {
        let [row, column] = layout::acc_element(warp.lane, 0).map(|x| x as i32);
        let (row, column) = (first[0] + row, first[1] + column);
        self.each(|m, n, h, i, x| {
            *x = f(*x, row + (m * 16 + i / 2 * 8) as i32, column + Self::column(n, h, i));
        });
    }

    /// Calls `f(value, row, column)` for each value. The first row and column are `first`.
    #[inline(always)]
    pub fn each_at(&mut self, first: [i32; 2], warp: Warp, mut f: impl FnMut(f32, i32, i32)) {
        let [row, column] = layout::acc_element(warp.lane, 0).map(|x| x as i32);
        let (row, column) = (first[0] + row, first[1] + column);
        self.each(|m, n, h, i, x| f(*x, row + (m * 16 + i / 2 * 8) as i32, column + Self::column(n, h, i)));
    }

    /// Calls `f(value, row)` for each value, with `[row tile, index of the lane's row in this tile]`.
    #[inline(always)]
    pub fn each_of_rows(&self, mut f: impl FnMut(f32, [usize; 2])) {
        for i in 0..M * N * 8 {
            let (m, n, h, i) = (i / (8 * N), i / 8 % N, i / 4 % 2, i % 4);
            f(self.0[m][n][h][i], [m, i / 2]);
        }
    }

    /// Calls `f(pair, row, column)` for each pair of values beside each other, with the place of the first
    /// one. The first row and column are `first`.
    #[inline(always)]
    pub fn each_pair_at(&self, first: [u32; 2], warp: Warp, f: impl Fn([f32; 2], u32, u32)) {
        let [row, column] = layout::acc_element(warp.lane, 0);
        let (row, column) = (first[0] + row, first[1] + column);
        for i in 0..M * N * 4 {
            let (m, n, h, r) = (i / (4 * N), i / 4 % N, i / 2 % 2, i % 2);
            let t = &self.0[m][n][h];
            let at = [m * 16 + r * 8, n * 16 + h * 8].map(|x| x as u32);
            f([t[2 * r], t[2 * r + 1]], row + at[0], column + at[1]);
        }
    }

    /// Keeps the values for which `f(row, column)` is true. All other values become minus infinity.
    #[inline(always)]
    pub fn keep_where(&mut self, first: [i32; 2], warp: Warp, f: impl Fn(i32, i32) -> bool) {
        self.map_at(first, warp, |x, row, column| if f(row, column) { x } else { f32::NEG_INFINITY });
    }

    /// Column of a register, relative to the lane's first column.
    #[inline(always)]
    fn column(n: usize, h: usize, i: usize) -> i32 {
        (n * 16 + h * 8 + i % 2) as i32
    }

    /// Computes one step of `to = f(self)`, packed as the A operand of the next product. The arguments of `f`
    /// are the value and `[row tile, index of the lane's row in this tile]`.
    #[inline(always)]
    pub fn map_to_operand<E: Mma>(
        &self,
        to: &mut AFrag<E, M, N>,
        part: Part,
        f: impl Fn(f32, [usize; 2]) -> f32,
    ) {
        for i in part.share(N * 2 * M * 2) {
            let (n, h, m, r) = (i / (4 * M), i / (2 * M) % 2, i / 2 % M, i % 2);
            let t = &self.0[m][n][h];
            to.registers[n][m][2 * h + r] = E::pack(f(t[2 * r], [m, r]), f(t[2 * r + 1], [m, r]));
        }
    }

    /// Returns two results: `f(self)`, packed as the A operand of the next product, and the row sums over
    /// this lane's columns before rounding. The arguments of `f` are the value and
    /// `[row tile, index of the lane's row in this tile]`.
    ///
    /// `ORDERED` keeps each addition next to its values. If it is false, LLVM sinks all additions below the
    /// last value, and the assembler schedules the exponentials differently: up to 10 % faster or slower.
    #[inline(always)]
    pub fn to_operand<E: Mma, const ORDERED: bool>(
        &self,
        mut f: impl FnMut(f32, [usize; 2]) -> f32,
    ) -> (AFrag<E, M, N>, RowVec<M>) {
        let mut to = AFrag::zero();
        // There are two chains of additions per row.
        let mut sums = [[[0.0; 2]; 2]; M];
        for i in 0..N * 4 * M {
            let (n, h, m, r) = (i / (4 * M), i / (2 * M) % 2, i / 2 % M, i % 2);
            let t = &self.0[m][n][h];
            let (a, b) = (f(t[2 * r], [m, r]), f(t[2 * r + 1], [m, r]));
            let sum = if n == 0 { a + b } else { sums[m][r][h] + a + b };
            sums[m][r][h] = if ORDERED { in_order(sum) } else { sum };
            to.registers[n][m][2 * h + r] = in_order_b32(E::pack(a, b));
        }
        (to, RowVec(sums.map(|rows| rows.map(|[a, b]| a + b))))
    }

    #[inline(always)]
    pub(crate) fn each(&mut self, mut f: impl FnMut(usize, usize, usize, usize, &mut f32)) {
        for m in 0..M {
            for n in 0..N {
                for h in 0..2 {
                    for i in 0..4 {
                        f(m, n, h, i, &mut self.0[m][n][h][i])
                    }
                }
            }
        }
    }

    /// Multiplies row `r` by `v[r]`. If `v[r]` is negative, the row becomes 0 instead, even if it contained
    /// NaN.
    #[inline(always)]
    pub fn scale_or_clear_rows(&mut self, v: &RowVec<M>) {
        self.each(|m, _, _, i, x| {
            let factor = v.0[m][i / 2];
            *x = if factor < 0.0 { 0.0 } else { *x * factor };
        });
    }
}
