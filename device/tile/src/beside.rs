//! One f32 per row of a tile: in global memory, in shared memory beside the tile, and beside an accumulator
//! whose rows or columns are the tile's rows.
use crate::copy::CpAsync;
use crate::group::{SplitGroup, ThreadGroup};
use crate::mma::{AFrag, Acc, Mma, RowVec};
use crate::shared::SharedLayout;
use crate::{Warp, layout};
use contract::PaddedVector;
use core::marker::PhantomData;
use cuda_std::cp_async;
use cuda_std::memory::{ld_global_b32, ld_shared_v2_b32, st_global_b32_if};

/// The values of one head of a [`PaddedVector`].
#[derive(Clone, Copy)]
pub struct HeadValues {
    base: u64,
    rows: u32,
}

/// `COUNT` values for each of the rows of `OF` tiles of `R` base tiles, in shared memory:
/// `[which][tile][row]`. Each of `OF` split groups reads the values of one tile.
pub struct SharedValues<const R: usize, const COUNT: usize, const OF: usize> {
    base: u32,
}

/// [`SharedValues`] while copies of transport `By` write them.
pub struct ValueSlot<const R: usize, const COUNT: usize, const OF: usize, By> {
    base: u32,
    by: PhantomData<By>,
}

// SAFETY: `Self` and `Slot` address only the `COUNT * OF * R * 64` bytes of the values.
unsafe impl<const R: usize, const COUNT: usize, const OF: usize> SharedLayout for SharedValues<R, COUNT, OF> {
    /// A tile may follow.
    const BYTES: usize = (COUNT * OF * R * 64).next_multiple_of(layout::PANEL_ALIGN);
    const ALIGN: usize = 16;
    type Slot<By> = ValueSlot<R, COUNT, OF, By>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        SharedValues { base }
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> ValueSlot<R, COUNT, OF, By> {
        ValueSlot { base, by: PhantomData }
    }
}

impl HeadValues {
    /// The values of head `head`, counted over all batches.
    #[inline(always)]
    pub fn new(values: &PaddedVector, head: u32) -> Self {
        let offset = head as u64 * values.rows as u64 * 4;
        HeadValues { base: values.base.wrapping_add(offset), rows: values.rows }
    }

    /// The device address of the value of row `row`.
    #[inline(always)]
    pub(crate) fn address(&self, row: u32) -> u64 {
        self.base.wrapping_add(row as u64 * 4)
    }

    /// The value of row `row`, or 0 if the row does not exist.
    #[inline(always)]
    pub fn get(&self, row: u32) -> f32 {
        if row >= self.rows {
            return 0.0;
        }
        // SAFETY: the row exists, and the base is a multiple of 16, as `PaddedVector` promises.
        f32::from_bits(unsafe { ld_global_b32(self.base.wrapping_add(row as u64 * 4)) })
    }

    /// The values of the warp's rows `row0..`; 0 for rows that do not exist.
    #[inline(always)]
    pub fn load<const M: usize>(&self, row0: u32, warp: Warp) -> RowVec<M> {
        RowVec(core::array::from_fn(|m| {
            [0, 2].map(|i| {
                let row = row0 + m as u32 * 16 + layout::acc_element(warp.lane, i)[0];
                if row >= self.rows {
                    return 0.0;
                }
                // SAFETY: the row exists, and the base is a multiple of 16, as `PaddedVector` promises.
                f32::from_bits(unsafe { ld_global_b32(self.base.wrapping_add(row as u64 * 4)) })
            })
        }))
    }

    /// Stores the value of a row that the four lanes of a quad hold, if the row exists.
    #[inline(always)]
    pub fn store_by_quads(&self, row: u32, value: f32, warp: Warp) {
        let is_mine = warp.lane.is_multiple_of(4) && row < self.rows;
        // SAFETY: the store happens only if the row exists; one lane of the quad stores.
        unsafe { st_global_b32_if(self.base.wrapping_add(row as u64 * 4), value.to_bits(), is_mine) }
    }
}

impl<const R: usize, const COUNT: usize, const OF: usize, W: ThreadGroup>
    ValueSlot<R, COUNT, OF, CpAsync<W>>
{
    /// The rows of all tiles.
    const ROWS: u32 = (R * OF) as u32 * 16;

    /// Starts the copies of the values of rows `n * 16 * R * OF` and following, from `COUNT` vectors.
    #[inline(always)]
    pub fn copy(&self, from: &[HeadValues; COUNT], n: u32, group: &W) {
        const { assert!(PaddedVector::ROWS.is_multiple_of(Self::ROWS), "stages must make up the padding") }
        const { assert!(W::THREADS * 4 >= Self::ROWS, "a thread copies at most four values per vector") }
        let (first, row) = (group.member() * 4, n * Self::ROWS);
        for (i, from) in from.iter().enumerate() {
            if first < Self::ROWS && row + first < from.rows {
                let at = from.base.wrapping_add((row + first) as u64 * 4);
                // SAFETY: four values exist at a multiple of 16, because rows are padded.
                // The destination is a chunk of this slot, which no thread reads before the copy has landed.
                unsafe { cp_async::cp_async(self.base + i as u32 * Self::ROWS * 4 + first * 4, at) }
            }
        }
    }
}

impl<const R: usize, const COUNT: usize, const OF: usize> SharedValues<R, COUNT, OF> {
    /// Value `WHICH` of each row of the split group's tile, beside an accumulator whose columns are these
    /// rows.
    #[inline(always)]
    pub fn columns<const WHICH: usize>(&self, group: SplitGroup<OF>, warp: Warp) -> ColumnValues<'_, R> {
        const { assert!(WHICH < COUNT) }
        let tile = (WHICH * OF) as u32 + group.index();
        // SAFETY: these are the values of one tile, which may be read as long as `self`.
        unsafe { ColumnValues::at(self.base + tile * R as u32 * 64, warp) }
    }
}

/// One value per column of a warp's accumulator of `N` base tiles of columns, in shared memory.
pub struct ColumnValues<'s, const N: usize> {
    at: u32,
    place: PhantomData<&'s ()>,
}

impl<'s, const N: usize> ColumnValues<'s, N> {
    /// The values at shared address `base`.
    ///
    /// # Safety
    /// - `N * 64` bytes at `base`, a multiple of 16, may be read while `'s` lasts.
    #[inline(always)]
    pub(crate) unsafe fn at(base: u32, warp: Warp) -> Self {
        let [_, column] = layout::acc_element(warp.lane, 0);
        ColumnValues { at: base + column * 4, place: PhantomData }
    }
}

/// One value per row, or per column, of an accumulator of `M x N` base tiles.
pub trait Beside<const M: usize, const N: usize> {
    /// Calls `f(row tile, column tile, half, register, value)` for each register of the accumulator. The
    /// calls for the four registers of a half follow each other.
    fn each(&self, f: impl FnMut(usize, usize, usize, usize, f32));
}

impl<const M: usize, const N: usize> Beside<M, N> for ColumnValues<'_, N> {
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize, usize, usize, usize, f32)) {
        for n in 0..N {
            for h in 0..2 {
                // SAFETY: the lane's two columns of this half, in memory that may be read for `'s`.
                let pair = unsafe { ld_shared_v2_b32(self.at + (n * 64 + h * 32) as u32) };
                for m in 0..M {
                    for i in 0..4 {
                        f(m, n, h, i, f32::from_bits(pair[i % 2]))
                    }
                }
            }
        }
    }
}

impl<const M: usize, const N: usize> Beside<M, N> for RowVec<M> {
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize, usize, usize, usize, f32)) {
        for n in 0..N {
            for h in 0..2 {
                for m in 0..M {
                    for i in 0..4 {
                        f(m, n, h, i, self.0[m][i / 2])
                    }
                }
            }
        }
    }
}

impl<const M: usize, const N: usize> Acc<M, N> {
    /// Replaces each value `x` by `f(x, y)`, where `y` is the value beside it.
    #[inline(always)]
    pub fn zip_beside(&mut self, beside: &impl Beside<M, N>, f: impl Fn(f32, f32) -> f32) {
        beside.each(|m, n, h, i, y| {
            let x = &mut self.0[m][n][h][i];
            *x = f(*x, y);
        });
    }

    /// Computes `[p, x'] = f(x, y)` of each value `x` and the value `y` beside it. Returns the `p`, rounded,
    /// as the A operand of the next product, and replaces `x` by `x'`.
    #[inline(always)]
    pub fn split_beside<E: Mma>(
        &mut self,
        beside: &impl Beside<M, N>,
        f: impl Fn(f32, f32) -> [f32; 2],
    ) -> AFrag<E, M, N> {
        let (mut to, mut low) = (AFrag::zero(), 0.0);
        beside.each(|m, n, h, i, y| {
            let x = &mut self.0[m][n][h][i];
            let [p, rest] = f(*x, y);
            *x = rest;
            if i % 2 == 0 {
                low = p;
            } else {
                to.registers[n][m][2 * h + i / 2] = E::pack(low, p);
            }
        });
        to
    }

    /// Computes `f(x, y, z)` of each value `x`, the value `y` of `other` and the value `z` beside both.
    /// Returns the results, rounded, as the A operand of the next product.
    #[inline(always)]
    pub fn join_beside<E: Mma>(
        &self,
        other: &Self,
        beside: &impl Beside<M, N>,
        f: impl Fn(f32, f32, f32) -> f32,
    ) -> AFrag<E, M, N> {
        let (mut to, mut low) = (AFrag::zero(), 0.0);
        beside.each(|m, n, h, i, z| {
            let x = f(self.0[m][n][h][i], other.0[m][n][h][i], z);
            if i % 2 == 0 {
                low = x;
            } else {
                to.registers[n][m][2 * h + i / 2] = E::pack(low, x);
            }
        });
        to
    }

    /// [`Acc::join_beside`] with the values of an A operand.
    #[inline(always)]
    pub fn join_rounded<E: Mma>(
        &self,
        other: &AFrag<E, M, N>,
        beside: &impl Beside<M, N>,
        f: impl Fn(f32, f32, f32) -> f32,
    ) -> AFrag<E, M, N> {
        let mut rounded = Self::unset();
        rounded.each(|m, n, h, i, x| *x = E::unpack(other.registers[n][m][h * 2 + i / 2])[i % 2]);
        self.join_beside(&rounded, beside, f)
    }
}
