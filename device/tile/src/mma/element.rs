//! Element types whose tiles a warp multiplies.
use crate::Warp;
use crate::group::sealed::Sealed;
use crate::mma::{AFrag, Acc, Part, Resident, TensorCore, Unpack};
use crate::shared::SharedTile;
use contract::{Bf16, F16};
use cuda_std::mma;

/// An element type whose tiles a warp multiplies: [`F16`] and [`Bf16`] on tensor cores, [`contract::Scalar`]
/// of either type on CUDA cores. All types accumulate in f32 and use the same fragments.
pub trait Mma: Unpack + Sealed {
    /// Computes `acc += a b^T`; `b` is `N x K`. `meanwhile` runs between the steps.
    fn mma_abt<const R: usize, const M: usize, const N: usize, const K: usize, const HELD: usize>(
        acc: &mut Acc<M, N>,
        a: &Resident<'_, Self, R, M, K, HELD>,
        b: &SharedTile<Self, N, K>,
        warp: Warp,
        meanwhile: impl FnMut(Part),
    );

    /// Computes `acc += a b`; `b` is `K x N`. `meanwhile` runs between the steps.
    fn mma_ab<const M: usize, const N: usize, const K: usize>(
        acc: &mut Acc<M, N>,
        a: &AFrag<Self, M, K>,
        b: &SharedTile<Self, K, N>,
        warp: Warp,
        meanwhile: impl FnMut(Part),
    );

    /// Adds the rows of a 16x16 tile of an A operand to `sum`, which has the layout of an accumulator whose
    /// columns are all the same.
    fn add_rows(sum: &mut [f32; 4], a: [u32; 4], warp: Warp);
}

macro_rules! on_tensor_cores {
    ($element:ident, ones $ones:literal, $mma:path) => {
        impl Sealed for $element {}
        impl TensorCore for $element {
            const ONES: u32 = $ones;
            #[inline(always)]
            unsafe fn mma(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                // SAFETY: the caller keeps the preconditions.
                unsafe { $mma(d, a, b) }
            }
        }
        impl Mma for $element {
            #[inline(always)]
            fn mma_abt<const R: usize, const M: usize, const N: usize, const K: usize, const HELD: usize>(
                acc: &mut Acc<M, N>,
                a: &Resident<'_, Self, R, M, K, HELD>,
                b: &SharedTile<Self, N, K>,
                warp: Warp,
                meanwhile: impl FnMut(Part),
            ) {
                crate::mma::tensor_core::abt(acc, |k| a.k_step(k), b, warp, meanwhile)
            }
            #[inline(always)]
            fn mma_ab<const M: usize, const N: usize, const K: usize>(
                acc: &mut Acc<M, N>,
                a: &AFrag<Self, M, K>,
                b: &SharedTile<Self, K, N>,
                warp: Warp,
                meanwhile: impl FnMut(Part),
            ) {
                crate::mma::tensor_core::ab(acc, a, b, warp, meanwhile)
            }
            #[inline(always)]
            fn add_rows(sum: &mut [f32; 4], a: [u32; 4], warp: Warp) {
                crate::mma::tensor_core::add_rows::<Self>(sum, a, warp)
            }
        }
    };
}
on_tensor_cores!(F16, ones 0x3c00_3c00, mma::mma_f16);
on_tensor_cores!(Bf16, ones 0x3f80_3f80, mma::mma_bf16);
