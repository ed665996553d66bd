//! Products of e4m3: `m64nNk32`. Both operands run along k, because the instruction transposes none of eight
//! bits.
use super::{Accumulator, Operand};
use crate::gpu_only;

/// Whether this file has products with `n` base tiles of columns.
pub const fn has_width_of_bytes(n: usize) -> bool {
    matches!(n, 4 | 8)
}

/// `wgmma.mma_async.sync.aligned.m64nNk32.f32.e4m3.e4m3`: one k-step of `d = a b^T`, or of `d += a b^T` if
/// `accumulate` is true. Descriptors select both tiles, whose rows run along k.
///
/// # Safety
/// - All 128 threads of the warpgroup call it, converged, after [`super::fence`]. [`has_width_of_bytes`] of
///   `N` is true.
/// - The tiles of the descriptors may be read, also in the asynchronous proxy, and do not change. No thread
///   touches `d` before a wait for the group of this product.
#[inline(always)]
#[gpu_only]
pub unsafe fn mma_async_abt_e4m3<const N: usize>(
    d: &mut Accumulator<N>,
    a: Operand,
    b: Operand,
    accumulate: bool,
) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        match (N, accumulate) {
            (4, false) => n4::set(super::flat(d), a.0, b.0),
            (4, true) => n4::add(super::flat(d), a.0, b.0),
            (_, false) => n8::set(super::flat(d), a.0, b.0),
            (_, true) => n8::add(super::flat(d), a.0, b.0),
        }
    }
}

/// `wgmma.mma_async.sync.aligned.m64nNk32.f32.e4m3.e4m3`: one k-step of `d = a b^T`, or of `d += a b^T` if
/// `accumulate` is true. `a` is in registers: byte `i` of register `r` is row `lane / 4 + r % 2 * 8`, depth
/// `r / 2 * 16 + lane % 4 * 4 + i`. A descriptor selects `b`, whose rows run along k.
///
/// # Safety
/// - The preconditions of [`mma_async_abt_e4m3`] hold. No thread touches the registers of `a` either
///   ([`super::hold`]).
#[inline(always)]
#[gpu_only]
pub unsafe fn mma_async_ab_e4m3<const N: usize>(
    d: &mut Accumulator<N>,
    a: [u32; 4],
    b: Operand,
    accumulate: bool,
) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        match (N, accumulate) {
            (4, false) => n4::set_from_registers(super::flat(d), a, b.0),
            (4, true) => n4::add_from_registers(super::flat(d), a, b.0),
            (_, false) => n8::set_from_registers(super::flat(d), a, b.0),
            (_, true) => n8::add_from_registers(super::flat(d), a, b.0),
        }
    }
}

/// [`mma_async_abt_e4m3`], which decides at run time whether it accumulates.
///
/// # Safety
/// - The preconditions of [`mma_async_abt_e4m3`] hold. `accumulate` is the same in all threads.
#[inline(always)]
#[gpu_only]
pub unsafe fn mma_async_abt_e4m3_if<const N: usize>(
    d: &mut Accumulator<N>,
    a: Operand,
    b: Operand,
    accumulate: u32,
) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        match N {
            4 => n4::add_if(super::flat(d), a.0, b.0, accumulate),
            _ => n8::add_if(super::flat(d), a.0, b.0, accumulate),
        }
    }
}

/// [`mma_async_ab_e4m3`], which decides at run time whether it accumulates.
///
/// # Safety
/// - The preconditions of [`mma_async_ab_e4m3`] hold. `accumulate` is the same in all threads.
#[inline(always)]
#[gpu_only]
pub unsafe fn mma_async_ab_e4m3_if<const N: usize>(
    d: &mut Accumulator<N>,
    a: [u32; 4],
    b: Operand,
    accumulate: u32,
) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        match N {
            4 => n4::add_from_registers_if(super::flat(d), a, b.0, accumulate),
            _ => n8::add_from_registers_if(super::flat(d), a, b.0, accumulate),
        }
    }
}

#[cfg(target_arch = "nvptx64")]
macro_rules! width {
    ($module:ident $columns:literal $registers:literal [$first:literal $($i:literal)*]) => {
        mod $module {
            #[inline(always)]
            pub unsafe fn set(d: &mut [f32; $registers], a: u64, b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.e4m3.e4m3 {{{",
                            $first, "}", $(", {", $i, "}",)* "}}, {a}, {b}, 0, 1, 1;"),
                        out(reg32) d[$first], $(out(reg32) d[$i],)*
                        a = in(reg64) a, b = in(reg64) b, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn add(d: &mut [f32; $registers], a: u64, b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.e4m3.e4m3 {{{",
                            $first, "}", $(", {", $i, "}",)* "}}, {a}, {b}, 1, 1, 1;"),
                        inout(reg32) d[$first], $(inout(reg32) d[$i],)*
                        a = in(reg64) a, b = in(reg64) b, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn add_if(d: &mut [f32; $registers], a: u64, b: u64, is: u32) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        "{{", ".reg .pred accumulates;", "setp.ne.u32 accumulates, {is}, 0;",
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.e4m3.e4m3 {{{",
                            $first, "}", $(", {", $i, "}",)* "}}, {a}, {b}, accumulates, 1, 1;"),
                        "}}",
                        inout(reg32) d[$first], $(inout(reg32) d[$i],)*
                        a = in(reg64) a, b = in(reg64) b, is = in(reg32) is, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn add_from_registers_if(d: &mut [f32; $registers], a: [u32; 4], b: u64, is: u32) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        "{{", ".reg .pred accumulates;", "setp.ne.u32 accumulates, {is}, 0;",
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.e4m3.e4m3 {{{",
                            $first, "}", $(", {", $i, "}",)*
                            "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, accumulates, 1, 1;"),
                        "}}",
                        inout(reg32) d[$first], $(inout(reg32) d[$i],)*
                        a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                        b = in(reg64) b, is = in(reg32) is, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn set_from_registers(d: &mut [f32; $registers], a: [u32; 4], b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.e4m3.e4m3 {{{",
                            $first, "}", $(", {", $i, "}",)* "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 0, 1, 1;"),
                        out(reg32) d[$first], $(out(reg32) d[$i],)*
                        a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                        b = in(reg64) b, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn add_from_registers(d: &mut [f32; $registers], a: [u32; 4], b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.e4m3.e4m3 {{{",
                            $first, "}", $(", {", $i, "}",)* "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1;"),
                        inout(reg32) d[$first], $(inout(reg32) d[$i],)*
                        a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                        b = in(reg64) b, options(nostack))
                }
            }
        }
    };
}

#[cfg(target_arch = "nvptx64")]
#[rustfmt::skip]
width! { n4 64 32 [
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
] }
#[cfg(target_arch = "nvptx64")]
#[rustfmt::skip]
width! { n8 128 64 [
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
] }
