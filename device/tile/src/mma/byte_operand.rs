//! A operands of integers of eight bits, which a warp makes of rows in global memory.
use crate::global::{GlobalRows, RowQuantiser};
use crate::group::WarpRows;
use crate::mma::{RowVec, Unpack};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::{F32, Kernel};
use cuda_std::math::fma;
use cuda_std::memory::{ld_shared_v4_b32, st_shared_v4_b32};

/// Shared memory for all but the first `HELD` k-steps of `R x D` base tiles of bytes, `M` row tiles per warp.
/// A k-step has 32 columns. Each lane keeps its own words.
pub struct BytePlace<const R: usize, const M: usize, const D: usize, const HELD: usize> {
    base: u32,
}

/// An A operand of one warp, in the order of [`byte_of_column`](crate::layout::byte_of_column).
pub struct ByteOperand<const M: usize, const D: usize, const HELD: usize> {
    held: [[[u32; 4]; M]; HELD],
    /// The shared address of this lane's first word.
    at: u32,
}

// SAFETY: the layout has 16 bytes per lane for each row tile and k-step that registers do not hold.
unsafe impl<const R: usize, const M: usize, const D: usize, const HELD: usize> Place
    for BytePlace<R, M, D, HELD>
{
    const BYTES: usize = R * (D / 2 - HELD) * 512;
    const ALIGN: usize = 16;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        BytePlace { base }
    }
}

impl<const R: usize, const M: usize, const D: usize, const HELD: usize> BytePlace<R, M, D, HELD> {
    /// Rounds the warp's rows of the tile that starts with row `row0` to integers. Returns them and the scale
    /// of each row. Rows and columns that do not exist are zero.
    #[inline(always)]
    pub fn quantise<E: Unpack, C: Kernel>(
        self,
        from: &GlobalRows<E, D>,
        row0: u32,
        rows: WarpRows<R, M>,
        _: &Block<C>,
    ) -> (ByteOperand<M, D, HELD>, RowVec<M>) {
        self.quantise_words::<E, C>(row0, rows, |row, warp| words(from, row, warp))
    }

    /// [`BytePlace::quantise`], with columns in order instead of that of
    /// [`byte_of_column`](crate::layout::byte_of_column).
    #[inline(always)]
    pub fn quantise_in_order<E: Unpack, C: Kernel>(
        self,
        from: &GlobalRows<E, D>,
        row0: u32,
        rows: WarpRows<R, M>,
        _: &Block<C>,
    ) -> (ByteOperand<M, D, HELD>, RowVec<M>) {
        self.quantise_words::<E, C>(row0, rows, |row, warp| words_in_order(from, row, warp))
    }

    #[inline(always)]
    fn quantise_words<E: Unpack, C: Kernel>(
        self,
        row0: u32,
        rows: WarpRows<R, M>,
        words: impl Fn(u32, Warp) -> [[u32; 2]; D],
    ) -> (ByteOperand<M, D, HELD>, RowVec<M>) {
        const { assert!(D.is_multiple_of(2), "a k-step has two base tiles") }
        const { assert!(C::THREADS as usize == R / M * 32, "each warp must have its own part") }
        let (warp, row0) = (rows.warp(), row0 + rows.first());
        let first = self.base + rows.index() * ((D / 2 - HELD) * M * 512) as u32 + warp.lane * 16;
        let mut operand = ByteOperand { held: [[[0; 4]; M]; HELD], at: first };
        let mut scales = RowVec::splat(0.0);
        for m in 0..M {
            let mut bytes = [[0; 2]; D];
            for r in 0..2 {
                let words = words(row0 + (m * 16 + r * 8) as u32, warp);
                let quantiser = RowQuantiser::of_quad(words.as_flattened(), E::unpack, warp);
                scales.0[m][r] = quantiser.scale();
                for k in 0..D {
                    let [[a, b], [c, d]] = words[k].map(E::unpack);
                    bytes[k][r] = quantiser.round_four([a, b, c, d]);
                }
            }
            for k in 0..D / 2 {
                let ([a, b], [c, d]) = (bytes[2 * k], bytes[2 * k + 1]);
                match k < HELD {
                    true => operand.held[k][m] = [a, b, c, d],
                    // SAFETY: these are this lane's words of shared memory that belongs to `self` alone.
                    false => unsafe { st_shared_v4_b32(operand.word(k, m), [a, b, c, d]) },
                }
            }
        }
        (operand, scales)
    }
}

/// This lane's words of row `lane / 4` behind row `first`: of each base tile, those of its two halves.
#[inline(always)]
fn words<E: Unpack, const D: usize>(from: &GlobalRows<E, D>, first: u32, warp: Warp) -> [[u32; 2]; D] {
    let (row, own) = (first + warp.lane / 4, warp.lane % 4);
    core::array::from_fn(|k| [0, 1].map(|half| from.word(row, 2 * k as u32 + half, own)))
}

/// This lane's words of row `lane / 4` behind row `first`: of each base tile, four neighbouring columns.
#[inline(always)]
fn words_in_order<E: Unpack, const D: usize>(
    from: &GlobalRows<E, D>,
    first: u32,
    warp: Warp,
) -> [[u32; 2]; D] {
    let (row, own) = (first + warp.lane / 4, warp.lane % 4);
    core::array::from_fn(|k| [0, 1].map(|next| from.word(row, 2 * k as u32 + own / 2, own % 2 * 2 + next)))
}

impl<E: Unpack, const D: usize> GlobalRows<E, D> {
    /// The dot products of the warp's rows of the tile that starts with row `row0`, and of `vector`, a row of
    /// f32.
    #[inline(always)]
    pub fn dot<const R: usize, const M: usize>(
        &self,
        row0: u32,
        rows: WarpRows<R, M>,
        vector: &GlobalRows<F32, D>,
    ) -> RowVec<M> {
        let (warp, row0) = (rows.warp(), row0 + rows.first());
        let mut dots = RowVec::splat(0.0);
        for m in 0..M {
            for r in 0..2 {
                let words = words(self, row0 + (m * 16 + r * 8) as u32, warp);
                for k in 0..D {
                    for half in 0..2 {
                        let [x, y] = E::unpack(words[k][half]);
                        let pair = (16 * k + 8 * half) as u32 + warp.lane % 4 * 2;
                        let of = |i: u32| f32::from_bits(vector.word(0, (pair + i) / 4, (pair + i) % 4));
                        dots.0[m][r] = fma(x, of(0), fma(y, of(1), dots.0[m][r]));
                    }
                }
            }
        }
        dots.across(warp, |a, b| a + b)
    }
}

impl<const M: usize, const D: usize, const HELD: usize> ByteOperand<M, D, HELD> {
    #[inline(always)]
    fn word(&self, k: usize, m: usize) -> u32 {
        self.at + (((k - HELD) * M + m) * 512) as u32
    }

    /// The registers of a k-step of 32 columns.
    #[inline(always)]
    pub(crate) fn k_step(&self, k: usize) -> [[u32; 4]; M] {
        if k < HELD {
            self.held[k]
        } else {
            // SAFETY: this lane has written the words in `quantise`, and no other lane has written them.
            core::array::from_fn(|m| unsafe { ld_shared_v4_b32(self.word(k, m)) })
        }
    }
}
