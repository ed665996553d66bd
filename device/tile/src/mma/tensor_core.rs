//! Products of a warp on tensor cores. The A operand is in registers, and the B operand is in shared memory.
use crate::Warp;
use crate::mma::{AFrag, Acc, Mma, OperandA, Part, Resident};
use crate::shared::SharedTile;
use crate::tma::Fills;
use contract::{Bf16, F16};
use cuda_std::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use cuda_std::wgmma::{self, Accumulator, Operand};

impl<const M: usize, const N: usize> Acc<M, N> {
    /// Computes `self += a b^T`; `b` is `N x K` in shared memory. `meanwhile` runs between the steps.
    #[inline(always)]
    pub fn mma_abt<E: Mma, const R: usize, const K: usize, const HELD: usize>(
        &mut self,
        a: &Resident<'_, E, R, M, K, HELD>,
        b: &SharedTile<E, N, K>,
        warp: Warp,
        meanwhile: impl FnMut(Part),
    ) {
        E::mma_abt(self, a, b, warp, meanwhile)
    }

    /// Computes `self += a b^T`; `a` belongs to this warp, and `b` is `N x K` in shared memory.
    #[inline(always)]
    pub fn add_abt<E: TensorCore, const K: usize, const HELD: usize>(
        &mut self,
        a: &OperandA<E, M, K, HELD>,
        b: &SharedTile<E, N, K>,
        warp: Warp,
    ) {
        abt(self, |k| a.k_step(k), b, warp, |_| {})
    }

    /// Computes `self += a b`; `b` is `K x N` in shared memory. `meanwhile` runs between the steps.
    #[inline(always)]
    pub fn mma_ab<E: Mma, const K: usize>(
        &mut self,
        a: &AFrag<E, M, K>,
        b: &SharedTile<E, K, N>,
        warp: Warp,
        meanwhile: impl FnMut(Part),
    ) {
        E::mma_ab(self, a, b, warp, meanwhile)
    }
}

/// An element type that tensor cores multiply.
pub trait TensorCore: Mma {
    /// Two elements with the value 1.
    const ONES: u32;
    /// Computes `d += a b` for one m16n8k16 (fragments: `cuda_std::mma`).
    ///
    /// # Safety
    /// - All 32 lanes call it, converged.
    unsafe fn mma(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
}

/// An element type that tensor cores multiply asynchronously, for a warpgroup.
pub trait WarpgroupCore: Mma + Fills<Self> {
    /// Issues one k-step of `d = a b^T`, or of `d += a b^T` if `accumulate` is true.
    ///
    /// # Safety
    /// - The preconditions of the products in `cuda_std::wgmma` hold.
    unsafe fn abt<const N: usize>(d: &mut Accumulator<N>, a: Operand, b: Operand, accumulate: bool);
    /// Issues one k-step of `d += a b`.
    ///
    /// # Safety
    /// - The preconditions of the products in `cuda_std::wgmma` hold.
    unsafe fn ab<const N: usize>(d: &mut Accumulator<N>, a: [u32; 4], b: Operand);
    /// Issues one k-step of `d = a b`, or of `d += a b` if `accumulate` is true, with `a` in shared memory.
    ///
    /// # Safety
    /// - The preconditions of the products in `cuda_std::wgmma` hold.
    unsafe fn ab_shared<const N: usize>(d: &mut Accumulator<N>, a: Operand, b: Operand, accumulate: bool);

    /// One k-step of `d = a^T b^T`.
    ///
    /// # Safety
    /// - The preconditions of the products in `cuda_std::wgmma` hold.
    unsafe fn at_bt<const N: usize>(d: &mut Accumulator<N>, a: Operand, b: Operand, accumulate: bool);
}

macro_rules! warpgroup_core {
    ($($element:ident: $abt:ident $ab:ident $ab_shared:ident $at_bt:ident;)*) => {$(
        impl WarpgroupCore for $element {
            #[inline(always)]
            unsafe fn abt<const N: usize>(d: &mut Accumulator<N>, a: Operand, b: Operand, accumulate: bool) {
                // SAFETY: the caller keeps the preconditions.
                unsafe { wgmma::$abt(d, a, b, accumulate) }
            }
            #[inline(always)]
            unsafe fn ab<const N: usize>(d: &mut Accumulator<N>, a: [u32; 4], b: Operand) {
                // SAFETY: the caller keeps the preconditions.
                unsafe { wgmma::$ab(d, a, b) }
            }
            #[inline(always)]
            unsafe fn ab_shared<const N: usize>(
                d: &mut Accumulator<N>,
                a: Operand,
                b: Operand,
                accumulate: bool,
            ) {
                // SAFETY: the caller keeps the preconditions.
                unsafe { wgmma::$ab_shared(d, a, b, accumulate) }
            }
            #[inline(always)]
            unsafe fn at_bt<const N: usize>(
                d: &mut Accumulator<N>,
                a: Operand,
                b: Operand,
                accumulate: bool,
            ) {
                // SAFETY: the caller keeps the preconditions.
                unsafe { wgmma::$at_bt(d, a, b, accumulate) }
            }
        }
    )*};
}
warpgroup_core! {
    F16: mma_async_abt_f16 mma_async_ab_f16 mma_async_ab_shared_f16 mma_async_at_bt_f16;
    Bf16: mma_async_abt_bf16 mma_async_ab_bf16 mma_async_ab_shared_bf16 mma_async_at_bt_bf16;
}

/// Computes `acc += a b^T`; `a` returns the registers of each k-step.
#[inline(always)]
pub(crate) fn abt<E: TensorCore, const M: usize, const N: usize, const K: usize>(
    acc: &mut Acc<M, N>,
    a: impl Fn(usize) -> [[u32; 4]; M],
    b: &SharedTile<E, N, K>,
    warp: Warp,
    mut meanwhile: impl FnMut(Part),
) {
    let b = b.rows_first(warp);
    for k in 0..K {
        let a = a(k);
        for n in 0..N {
            // SAFETY: `b` addresses rows of a readable tile, and `Warp` stands for 32 converged lanes.
            let b = unsafe { ldmatrix_x4(b.tile(n, k)) };
            column_tile::<E, M, N>(acc, n, a, b, warp);
            meanwhile(Part { at: k * N + n, of: K * N });
        }
    }
}

/// Computes `acc += a b`.
#[inline(always)]
pub(crate) fn ab<E: TensorCore, const M: usize, const N: usize, const K: usize>(
    acc: &mut Acc<M, N>,
    a: &AFrag<E, M, K>,
    b: &SharedTile<E, K, N>,
    warp: Warp,
    mut meanwhile: impl FnMut(Part),
) {
    let b = b.columns_first(0, warp);
    for k in 0..K {
        for n in 0..N {
            // SAFETY: `b` addresses rows of a readable tile, and `Warp` stands for 32 converged lanes.
            let b = unsafe { ldmatrix_x4_trans(b.tile(k, n)) };
            column_tile::<E, M, N>(acc, n, a.registers[k], b, warp);
            meanwhile(Part { at: k * N + n, of: K * N });
        }
    }
}

/// Multiplies one k-step of column tile `n`. One `ldmatrix` feeds `2 * M` products. Shared memory is
/// therefore not the limit if a warp has 32 rows.
#[inline(always)]
fn column_tile<E: TensorCore, const M: usize, const N: usize>(
    acc: &mut Acc<M, N>,
    n: usize,
    a: [[u32; 4]; M],
    [b0, b1, b2, b3]: [u32; 4],
    _warp: Warp,
) {
    for m in 0..M {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe {
            E::mma(&mut acc.0[m][n][0], a[m], [b0, b1]);
            E::mma(&mut acc.0[m][n][1], a[m], [b2, b3]);
        }
    }
}

/// Adds row sums as a product with ones, without additions or shuffles.
#[inline(always)]
pub(crate) fn add_rows<E: TensorCore>(sum: &mut [f32; 4], a: [u32; 4], _warp: Warp) {
    // SAFETY: `Warp` stands for 32 converged lanes.
    unsafe { E::mma(sum, a, [E::ONES; 2]) }
}
