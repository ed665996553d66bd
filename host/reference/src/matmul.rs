//! Products of matrices on the CPU.
use crate::arithmetic::Real;

/// Columns of a product that fit into registers and the first-level cache.
const COLUMNS: usize = 32;

/// Like [`multiply`], but with code for AVX2 if the CPU has AVX2.
pub(super) fn matmul<T: Real>(a: &[T], inner: usize, b: &[T], b_stride: usize, c: &mut [T], columns: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { multiply_avx2(a, inner, b, b_stride, c, columns) };
    }
    multiply(a, inner, b, b_stride, c, columns)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2<T: Real>(a: &[T], inner: usize, b: &[T], b_stride: usize, c: &mut [T], columns: usize) {
    multiply(a, inner, b, b_stride, c, columns)
}

/// Computes `c = a b`. `a` is `[rows, inner]`, `b` is `[inner, ..]` with `b_stride` elements from row to row,
/// `c` is `[rows, columns]`.
#[inline(always)]
fn multiply<T: Real>(a: &[T], inner: usize, b: &[T], b_stride: usize, c: &mut [T], columns: usize) {
    if inner == 0 || columns == 0 {
        return;
    }
    for (a, c) in a.chunks(4 * inner).zip(c.chunks_mut(4 * columns)) {
        for first in (0..columns).step_by(COLUMNS) {
            let width = COLUMNS.min(columns - first);
            let mut acc = [[T::ZERO; COLUMNS]; 4];
            for i in 0..inner {
                let b = &b[i * b_stride + first..][..width];
                for (a, acc) in a.chunks(inner).zip(&mut acc) {
                    match <&[T; COLUMNS]>::try_from(b) {
                        Ok(b) => (0..COLUMNS).for_each(|j| acc[j] += a[i] * b[j]),
                        Err(_) => acc.iter_mut().zip(b).for_each(|(acc, b)| *acc += a[i] * *b),
                    }
                }
            }
            for (c, acc) in c.chunks_mut(columns).zip(&acc) {
                c[first..first + width].copy_from_slice(&acc[..width]);
            }
        }
    }
}
