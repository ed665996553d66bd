//! Products of bytes on tensor cores: integers with exact sums, and e4m3 with short sums that are added in
//! f32.
use crate::Warp;
use crate::mma::{Acc, ByteOperand, RowVec};
use crate::shared::ByteStage;
use cuda_std::ldmatrix::ldmatrix_x4;
use cuda_std::math::{fma, in_order, in_order_b32, pack_e4m3_x4};
use cuda_std::mma::{mma_e4m3, mma_s8};

/// An A operand of bytes in registers, `[16 columns][row tile][row g or g + 8]`, in the order of
/// [`byte_of_column`](crate::layout::byte_of_column).
#[derive(Clone, Copy)]
pub struct ByteFrag<const M: usize, const K: usize>([[[u32; 2]; M]; K]);

impl<const M: usize, const K: usize> ByteFrag<M, K> {
    /// The registers of row tile `m` in a k-step of 32 columns.
    #[inline(always)]
    pub(crate) fn k_step(&self, k: usize, m: usize) -> [u32; 4] {
        let [[a, b], [c, d]] = [self.0[2 * k][m], self.0[2 * k + 1][m]];
        [a, b, c, d]
    }

    /// This operand in other registers; `zero` is 0. ptxas serialises all products of a kernel if an operand
    /// is written while another product is in flight, and looks through copies.
    #[inline(always)]
    pub fn renewed(self, zero: u32) -> Self {
        ByteFrag(self.0.map(|step| step.map(|tile| tile.map(|word| in_order_b32(word | zero)))))
    }
}

/// Exact products of integers: `n` is stored as the bits of the f32 1.5 * 2^23 + `n`. The sum is exact, so
/// the conversion costs no instruction.
#[derive(Clone, Copy)]
pub struct Integers<const M: usize, const N: usize>([[[[u32; 4]; 2]; N]; M]);

impl<const M: usize, const N: usize> Integers<M, N> {
    /// 1.5 * 2^23, whose neighbours within 2^22 are integers.
    const ZERO: f32 = 12_582_912.0;

    /// The product of an operand and the integers of a stage.
    #[inline(always)]
    pub fn product<const D: usize, const DV: usize, const HELD: usize>(
        a: &ByteOperand<M, D, HELD>,
        b: &ByteStage<N, D, DV>,
        warp: Warp,
    ) -> Self {
        const { assert!(D * 16 * 127 * 127 < 1 << 22, "sums must stay within 2^22") }
        let mut sums = [[[[Self::ZERO.to_bits(); 4]; 2]; N]; M];
        let b = b.integers(warp);
        for k in 0..D / 2 {
            let a = a.k_step(k);
            for n in 0..N {
                // SAFETY: `b` addresses rows of a readable stage, and `Warp` stands for 32 converged lanes.
                unsafe {
                    let [b0, b1, b2, b3] = ldmatrix_x4(b.tile(n, k));
                    for m in 0..M {
                        mma_s8(&mut sums[m][n][0], a[m], [b0, b1]);
                        mma_s8(&mut sums[m][n][1], a[m], [b2, b3]);
                    }
                }
            }
        }
        Integers(sums)
    }

    /// The integers, times the scale of each column, which is a row of the stage. With a scale of at most 22
    /// significant bits, `ZERO` times it is exact, and each result is rounded once. With more bits, all
    /// results of the column are off by the same amount, at most 0.75 units of their integers.
    #[inline(always)]
    pub fn scaled<const D: usize, const DV: usize>(
        &self,
        stage: &ByteStage<N, D, DV>,
        warp: Warp,
    ) -> Acc<M, N> {
        let mut acc = Acc::zero();
        for n in 0..N {
            let scales = stage.row_scales(n, warp);
            let zeros = scales.map(|scale| scale * -Self::ZERO);
            for m in 0..M {
                for h in 0..2 {
                    for i in 0..4 {
                        let at = 2 * h + i % 2;
                        let x = f32::from_bits(self.0[m][n][h][i]);
                        acc.0[m][n][h][i] = fma(x, scales[at], zeros[at]);
                    }
                }
            }
        }
        acc
    }
}

impl<const N: usize> Acc<1, N> {
    /// [`Acc::to_e4m3`] for products of a warpgroup: bytes are made in this order, and each row has two sums,
    /// over its even and its odd halves of columns. The arguments of `f` are the value and the lane's row.
    #[inline(always)]
    pub fn to_e4m3_in_order(&self, f: impl Fn(f32, [usize; 2]) -> f32) -> (ByteFrag<1, N>, [RowVec<1>; 2]) {
        let (mut to, mut sums) = (ByteFrag([[[0; 2]; 1]; N]), [RowVec::splat(0.0); 2]);
        for n in 0..N {
            for r in 0..2 {
                // As statements: LLVM would make a loop and a local array of iterators.
                let [low, high] = &self.0[0][n];
                let (a, b) = (f(low[2 * r], [0, r]), f(low[2 * r + 1], [0, r]));
                let (c, d) = (f(high[2 * r], [0, r]), f(high[2 * r + 1], [0, r]));
                sums[0].0[0][r] = in_order(sums[0].0[0][r] + a + b);
                sums[1].0[0][r] = in_order(sums[1].0[0][r] + c + d);
                to.0[n][0][r] = in_order_b32(pack_e4m3_x4([a, b, c, d]));
            }
        }
        (to, sums)
    }
}

impl<const M: usize, const N: usize> Acc<M, N> {
    /// Returns two results: `f(self)`, rounded to e4m3, as the A operand of the next product, and the row
    /// sums over this lane's columns before rounding. The arguments of `f` are the value and `[row tile,
    /// index of the lane's row in this tile]`.
    #[inline(always)]
    pub fn to_e4m3(&self, f: impl Fn(f32, [usize; 2]) -> f32) -> (ByteFrag<M, N>, RowVec<M>) {
        let (mut to, mut sums) = (ByteFrag([[[0; 2]; M]; N]), RowVec::splat(0.0));
        for n in 0..N {
            for m in 0..M {
                for r in 0..2 {
                    let [first, second] = self.0[m][n];
                    let x = [first[2 * r], first[2 * r + 1], second[2 * r], second[2 * r + 1]];
                    let x = x.map(|x| f(x, [m, r]));
                    sums.0[m][r] += x[0] + x[1] + (x[2] + x[3]);
                    to.0[n][m][r] = pack_e4m3_x4(x);
                }
            }
        }
        (to, sums)
    }

    /// Adds the product of an operand and the e4m3 of a stage; row `r` of the product is multiplied by
    /// `factor[r]`. Tensor cores add one product of all columns at a time, from 0: Ada's sums keep 13 bits of
    /// fraction.
    #[inline(always)]
    pub fn add_e4m3<const K: usize>(
        &mut self,
        a: &ByteFrag<M, K>,
        b: &ByteStage<K, N>,
        factor: &RowVec<M>,
        warp: Warp,
    ) {
        let b = b.floats(warp);
        for n in 0..N {
            // With all products of 256 columns in flight, ptxas spills 524 bytes. It moves no load across a
            // barrier. Up to 128 columns, it spills nothing.
            if N > 8 && n % 4 == 0 {
                warp.sync();
            }
            let b: [[u32; 4]; K] = core::array::from_fn(|k| match 2 * k < K {
                // SAFETY: `b` addresses rows of a readable stage, and `Warp` stands for 32 converged lanes.
                true => unsafe { ldmatrix_x4(b.tile(n, k)) },
                false => [0; 4],
            });
            for m in 0..M {
                for h in 0..2 {
                    let mut sum = [0.0; 4];
                    for k in 0..K / 2 {
                        // SAFETY: `Warp` stands for 32 converged lanes.
                        unsafe { mma_e4m3(&mut sum, a.k_step(k, m), [b[k][2 * h], b[k][2 * h + 1]]) }
                    }
                    for i in 0..4 {
                        let x = &mut self.0[m][n][h][i];
                        *x = fma(sum[i], factor.0[m][i / 2], *x);
                    }
                }
            }
        }
    }
}
