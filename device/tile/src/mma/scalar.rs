//! Products on CUDA cores, with the fragments of tensor cores. These products are a baseline that shows the
//! gain of tensor cores.
use crate::group::sealed::Sealed;
use crate::mma::{AFrag, Acc, Mma, Part, Resident};
use crate::shared::SharedTile;
use crate::{Warp, layout};
use contract::{Bf16, Element, F16, Scalar};
use cuda_std::memory::{ld_shared_b32, ld_shared_v4_b32};
use cuda_std::{math, warp as lanes};

/// An element type of 16 bits.
pub trait Unpack: Element {
    /// Unpacks two elements as f32, the low half first. The conversion is exact.
    fn unpack(x: u32) -> [f32; 2];
    /// Packs two f32, rounded to nearest even, with `lo` in the low half.
    fn pack(lo: f32, hi: f32) -> u32;
}
impl Unpack for F16 {
    #[inline(always)]
    fn unpack(x: u32) -> [f32; 2] {
        math::unpack_f16(x)
    }
    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        math::pack_f16(lo, hi)
    }
}
impl Unpack for Bf16 {
    #[inline(always)]
    fn unpack(x: u32) -> [f32; 2] {
        math::unpack_bf16(x)
    }
    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        math::pack_bf16(lo, hi)
    }
}

/// Loads eight elements of a tile.
///
/// # Safety
/// - `at` is the shared address of a chunk in a tile that may be read.
#[inline(always)]
unsafe fn chunk<E: Unpack>(at: u32) -> [[f32; 2]; 4] {
    // SAFETY: the caller keeps the preconditions.
    unsafe { ld_shared_v4_b32(at) }.map(E::unpack)
}

#[inline(always)]
fn dot(mut sum: f32, a: &[[f32; 2]; 4], b: &[[f32; 2]; 4]) -> f32 {
    for i in 0..4 {
        sum = math::fma(a[i][0], b[i][0], sum);
        sum = math::fma(a[i][1], b[i][1], sum);
    }
    sum
}

impl<E> Sealed for Scalar<E> {}
impl<E: Unpack> Unpack for Scalar<E> {
    #[inline(always)]
    fn unpack(x: u32) -> [f32; 2] {
        E::unpack(x)
    }
    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        E::pack(lo, hi)
    }
}
impl<E: Unpack> Mma for Scalar<E> {
    /// Each lane multiplies the rows of `a` and of `b` that its accumulators need.
    #[inline(always)]
    fn mma_abt<const R: usize, const M: usize, const N: usize, const K: usize, const HELD: usize>(
        acc: &mut Acc<M, N>,
        a: &Resident<'_, Self, R, M, K, HELD>,
        b: &SharedTile<Self, N, K>,
        warp: Warp,
        mut meanwhile: impl FnMut(Part),
    ) {
        let width = SharedTile::<Self, N, K>::ROW_CHUNKS;
        let [row, column] = layout::acc_element(warp.lane, 0);
        for c in 0..width {
            let rows: [[[[f32; 2]; 4]; 2]; M] = core::array::from_fn(|m| {
                core::array::from_fn(|r| {
                    let at = SharedTile::<Self, R, K>::offset((m * 16 + r * 8) as u32 + row, c);
                    // SAFETY: this is a chunk of the warp's rows, in the tile that `a` borrows.
                    unsafe { chunk::<E>(a.first_row + at) }
                })
            });
            for n in 0..N {
                for h in 0..2 {
                    for i in 0..2 {
                        let at = SharedTile::<Self, N, K>::offset((n * 16 + h * 8 + i) as u32 + column, c);
                        // SAFETY: this is a chunk of a readable tile.
                        let b = unsafe { chunk::<E>(b.base + at) };
                        for m in 0..M {
                            for r in 0..2 {
                                let x = &mut acc.0[m][n][h][2 * r + i];
                                *x = dot(*x, &rows[m][r], &b);
                            }
                        }
                    }
                }
            }
            meanwhile(Part { at: c as usize, of: width as usize });
        }
    }

    /// Each lane fetches the A operand from the lanes that share its rows, and loads its own columns of `b`.
    #[inline(always)]
    fn mma_ab<const M: usize, const N: usize, const K: usize>(
        acc: &mut Acc<M, N>,
        a: &AFrag<Self, M, K>,
        b: &SharedTile<Self, K, N>,
        warp: Warp,
        mut meanwhile: impl FnMut(Part),
    ) {
        for k in 0..K {
            for quad in 0..4 {
                for half in 0..2 {
                    // The chunk of row `2 * quad`, and the chunk of the next row, in this half of the k-step.
                    let p: [[[f32; 2]; 2]; M] = core::array::from_fn(|m| {
                        core::array::from_fn(|r| {
                            let x = a.registers[k][m][2 * half + r];
                            // SAFETY: `Warp` stands for 32 converged lanes.
                            E::unpack(unsafe { lanes::shuffle(x, warp.lane / 4 * 4 + quad) })
                        })
                    });
                    for i in 0..2 {
                        let key = (k * 16 + half * 8 + i) as u32 + quad * 2;
                        for n in 0..N {
                            for h in 0..2 {
                                let at = SharedTile::<Self, K, N>::offset(key, (2 * n + h) as u32)
                                    + warp.lane % 4 * 4;
                                // SAFETY: this is a word in a row of a readable tile.
                                let v = E::unpack(unsafe { ld_shared_b32(b.base + at) });
                                for m in 0..M {
                                    for r in 0..2 {
                                        for c in 0..2 {
                                            let x = &mut acc.0[m][n][h][2 * r + c];
                                            *x = math::fma(p[m][r][i], v[c], *x);
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            meanwhile(Part { at: k, of: K });
        }
    }

    #[inline(always)]
    fn add_rows(sum: &mut [f32; 4], a: [u32; 4], warp: Warp) {
        for r in 0..2 {
            let ([x0, x1], [x2, x3]) = (E::unpack(a[r]), E::unpack(a[2 + r]));
            let row = warp.quad(x0 + x1 + (x2 + x3), |a, b| a + b);
            sum[2 * r] += row;
            sum[2 * r + 1] += row;
        }
    }
}
