//! `wgmma`: asynchronous tensor-core products of a warpgroup of four warps (sm_90a).
//!
//! In `m64nNk16`, warp `w` of the four holds the 16 rows from row `16 w` on of the accumulator. The
//! accumulator consists of base tiles of 16 columns, each of which has the layout of `mma` ([`crate::mma`]).
//! An A operand in registers has this layout too. A [`Descriptor`] selects an operand in shared memory.
//!
//! A product runs while its warps continue. Until [`wait_group`], no thread may touch the product's
//! accumulator, the registers of its A operand, or its tiles. Accumulators are both input and output of the
//! assembly here, so LLVM sees plain values. The registers are also input and output of the assembly of the
//! wait. LLVM therefore keeps other computation apart from the values of a product in flight. LLVM may still
//! copy a value in flight; ptxas then reports that it serialises the products (C7510 to C7520), and
//! `cuda_builder` refuses the kernel.
#[cfg(target_arch = "nvptx64")]
use crate::convergent_asm;
use crate::gpu_only;
use crate::math::{opaque_b64, unknown_b64};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

mod bytes;

pub use bytes::{
    has_width_of_bytes, mma_async_ab_e4m3, mma_async_ab_e4m3_if, mma_async_abt_e4m3, mma_async_abt_e4m3_if,
};

/// An accumulator of `N` base tiles of 16 columns: `[column tile][8-column half][register]`.
pub type Accumulator<const N: usize> = [[[f32; 4]; 2]; N];

/// Whether this file has products with `n` base tiles of columns.
pub const fn has_width(n: usize) -> bool {
    matches!(n, 2 | 4 | 5 | 6 | 7 | 8 | 12 | 16)
}

/// The swizzle of a tile's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Rows of 64 bytes.
    Bytes64,
    /// Rows of 128 bytes.
    Bytes128,
}

/// A matrix descriptor, which selects an operand in shared memory. `descriptor + n` selects the operand that
/// lies `n` units of 16 bytes further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// The descriptor of a tile at `address`. The tile consists of swizzled panels that are `panel` bytes
    /// apart. Their rows have 64 or 128 bytes, in groups of 8 rows. The next k-step lies 32 bytes further in
    /// the panel if k runs along rows, and 16 rows further if k runs along columns.
    #[inline(always)]
    pub const fn new(address: u32, panel: u32, swizzle: Swizzle) -> Self {
        let (mode, row) = match swizzle {
            Swizzle::Bytes64 => (2, 64),
            Swizzle::Bytes128 => (1, 128),
        };
        let address = ((address & 0x3_ffff) >> 4) as u64;
        Self(mode << 62 | (8 * row / 16) << 32 | ((panel / 16) as u64) << 16 | address)
    }

    /// The address of the tile.
    #[inline(always)]
    pub const fn address(self) -> u32 {
        ((self.0 & 0x3fff) as u32) << 4
    }

    /// Returns this descriptor. The compiler computes nothing that depends on the result before this call.
    #[inline(always)]
    pub fn opaque(self) -> Self {
        Self(opaque_b64(self.0))
    }

    /// The first operand of a product.
    #[inline(always)]
    pub fn operand(self) -> Operand {
        Operand(unknown_b64(self.0))
    }
}

impl core::ops::Add<u64> for Descriptor {
    type Output = Self;
    #[inline(always)]
    fn add(self, units: u64) -> Self {
        Self(self.0 + units)
    }
}

/// A [`Descriptor`] as an operand of a product. `operand + n` is the operand that lies `n` units of 16 bytes
/// further.
///
/// LLVM does not know the upper half, which is the layout of the tile. If it knew the half, it would add the
/// half and the distance of a k-step as one constant of 64 bits. ptxas of CUDA 12.8 to 13.0 has lost the
/// upper halves of such sums without a message. The sums of this type have a small constant, and keep the
/// half.
#[derive(Clone, Copy)]
pub struct Operand(u64);

impl Operand {
    /// Returns this operand. The compiler computes no operand that depends on the result before this call.
    #[inline(always)]
    pub fn opaque(self) -> Self {
        Self(opaque_b64(self.0))
    }
}

impl core::ops::Add<u64> for Operand {
    type Output = Self;
    #[inline(always)]
    fn add(self, units: u64) -> Self {
        Self(self.0 + units)
    }
}

/// `wgmma.fence.sync.aligned`: makes earlier writes to registers visible to later products. The fence is
/// required before the first product, and before a product whose registers other instructions have accessed.
///
/// # Safety
/// - All 128 threads of the warpgroup call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn fence() {
    // SAFETY: the caller keeps the preconditions.
    unsafe { convergent_asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// `wgmma.commit_group.sync.aligned`: closes a group of all products since the previous group.
///
/// # Safety
/// - All 128 threads of the warpgroup call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn commit_group() {
    // SAFETY: the caller keeps the preconditions.
    unsafe { convergent_asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Keeps the registers of an A operand unchanged up to this call. LLVM otherwise assumes that a product has
/// read them when it is issued.
#[inline(always)]
#[gpu_only]
pub fn hold(a: &[u32; 4]) {
    // SAFETY: the assembly is only a comment.
    unsafe {
        asm!("// {0} {1} {2} {3}", in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
            options(nomem, nostack))
    }
}

/// Evaluates `f` with the module of width `$n`.
#[cfg(target_arch = "nvptx64")]
macro_rules! widths {
    ($n:ident, |$w:ident| $w2:ident::$($call:tt)*) => {
        match $n {
            2 => n2::$($call)*,
            4 => n4::$($call)*,
            5 => n5::$($call)*,
            6 => n6::$($call)*,
            7 => n7::$($call)*,
            8 => n8::$($call)*,
            12 => n12::$($call)*,
            16 => n16::$($call)*,
            // `has_width` is false for every other width.
            _ => core::hint::unreachable_unchecked(),
        }
    };
}
/// `wgmma.wait_group.sync.aligned PENDING`: waits until at most the `PENDING` youngest groups are in flight.
/// If `d` belongs to an older group, its values may then be read.
///
/// # Safety
/// - All 128 threads of the warpgroup call this function, converged, at the same instruction.
#[inline(always)]
#[gpu_only]
pub unsafe fn wait_group<const PENDING: u32, const N: usize>(d: &mut Accumulator<N>) {
    // SAFETY: the caller keeps the preconditions.
    unsafe { widths!(N, |w| w::wait_group::<PENDING>(flat(d))) }
}

macro_rules! products {
    ($($abt:ident $ab:ident $ab_shared:ident $at_bt:ident $element:ident $type:literal;)*) => {$(
        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64nNk16.f32.", $type, ".", $type, "`:")]
        /// One k-step of `d = a b^T`, or of `d += a b^T` if `accumulate` is true. Descriptors select both
        /// tiles, whose rows run along k.
        ///
        /// # Safety
        /// - All 128 threads of the warpgroup call it, converged, after [`fence`]. [`has_width`] of `N` is
        ///   true.
        /// - The tiles of the descriptors may be read, also in the asynchronous proxy, and do not change. No
        ///   thread touches `d` before a wait for the group of this product.
        #[inline(always)]
        #[gpu_only]
        pub unsafe fn $abt<const N: usize>(d: &mut Accumulator<N>, a: Operand, b: Operand, accumulate: bool) {
            // SAFETY: the caller keeps the preconditions.
            unsafe {
                match accumulate {
                    false => widths!(N, |w| w::$element::set::<0, 0>(flat(d), a.0, b.0)),
                    true => widths!(N, |w| w::$element::add::<0, 0>(flat(d), a.0, b.0)),
                }
            }
        }

        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64nNk16.f32.", $type, ".", $type, "`:")]
        /// One k-step of `d += a b`. `a` is in registers. A descriptor selects `b`, whose columns run along
        /// k.
        ///
        /// # Safety
        /// - The preconditions of the function above hold. No thread touches the registers of `a` either
        ///   ([`hold`]).
        #[inline(always)]
        #[gpu_only]
        pub unsafe fn $ab<const N: usize>(d: &mut Accumulator<N>, a: [u32; 4], b: Operand) {
            // SAFETY: the caller keeps the preconditions.
            unsafe { widths!(N, |w| w::$element::add_from_registers(flat(d), a, b.0)) }
        }

        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64nNk16.f32.", $type, ".", $type, "`:")]
        /// One k-step of `d = a b`, or of `d += a b` if `accumulate` is true. Descriptors select `a`, whose
        /// rows run along k, and `b`, whose columns run along k.
        ///
        /// # Safety
        /// - The preconditions of the first function hold.
        #[inline(always)]
        #[gpu_only]
        pub unsafe fn $ab_shared<const N: usize>(
            d: &mut Accumulator<N>,
            a: Operand,
            b: Operand,
            accumulate: bool,
        ) {
            // SAFETY: the caller keeps the preconditions.
            unsafe {
                match accumulate {
                    false => widths!(N, |w| w::$element::set::<0, 1>(flat(d), a.0, b.0)),
                    true => widths!(N, |w| w::$element::add::<0, 1>(flat(d), a.0, b.0)),
                }
            }
        }

        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64nNk16.f32.", $type, ".", $type, "`:")]
        /// One k-step of `d = a^T b^T`, or of `d += a^T b^T` if `accumulate` is true. Descriptors select `a`,
        /// whose columns run along k, and `b`, whose rows run along k.
        ///
        /// # Safety
        /// - The preconditions of the first function hold.
        #[inline(always)]
        #[gpu_only]
        pub unsafe fn $at_bt<const N: usize>(
            d: &mut Accumulator<N>,
            a: Operand,
            b: Operand,
            accumulate: bool,
        ) {
            // SAFETY: the caller keeps the preconditions.
            unsafe {
                match accumulate {
                    false => widths!(N, |w| w::$element::set::<1, 0>(flat(d), a.0, b.0)),
                    true => widths!(N, |w| w::$element::add::<1, 0>(flat(d), a.0, b.0)),
                }
            }
        }
    )*};
}
products! {
    mma_async_abt_f16 mma_async_ab_f16 mma_async_ab_shared_f16 mma_async_at_bt_f16 f16 "f16";
    mma_async_abt_bf16 mma_async_ab_bf16 mma_async_ab_shared_bf16 mma_async_at_bt_bf16 bf16 "bf16";
}

/// The accumulator's registers, in order.
///
/// # Safety
/// - `L` is `8 * N`. The arms of `widths` with another `L` never run: monomorphisation drops them.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
unsafe fn flat<const N: usize, const L: usize>(d: &mut Accumulator<N>) -> &mut [f32; L] {
    // SAFETY: the caller promises this number of f32.
    unsafe { &mut *core::ptr::from_mut(d).cast() }
}

/// Defines one module per width. Each module has the registers of the next smaller width and some more.
#[cfg(target_arch = "nvptx64")]
macro_rules! modules {
    ([$($before:literal)*]) => {};
    (
        [$($before:literal)*] $module:ident $columns:literal $registers:literal [$($more:literal)*]
        $($rest:tt)*
    ) => {
        width! { $module $columns $registers [$($before)* $($more)*] }
        modules! { [$($before)* $($more)*] $($rest)* }
    };
}

#[cfg(target_arch = "nvptx64")]
macro_rules! width {
    ($module:ident $columns:literal $registers:literal [$first:literal $($i:literal)*]) => {
        mod $module {
            #[inline(always)]
            pub unsafe fn wait_group<const PENDING: u32>(d: &mut [f32; $registers]) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!("wgmma.wait_group.sync.aligned {pending};",
                        concat!("// {", $first, "}", $(" {", $i, "}",)*),
                        inout(reg32) d[$first], $(inout(reg32) d[$i],)*
                        pending = const PENDING, options(nostack))
                }
            }
            product! { f16 "f16" $columns $registers [$first $($i)*] }
            product! { bf16 "bf16" $columns $registers [$first $($i)*] }
        }
    };
}

/// `A` and `B` are 1 for a tile whose columns run along k, otherwise 0.
#[cfg(target_arch = "nvptx64")]
macro_rules! product {
    ($element:ident $type:literal $columns:literal $registers:literal [$first:literal $($i:literal)*]) => {
        pub mod $element {
            #[inline(always)]
            pub unsafe fn set<const A: u32, const B: u32>(d: &mut [f32; $registers], a: u64, b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type,
                            " {{{", $first, "}", $(", {", $i, "}",)* "}}, {a}, {b}, 0, 1, 1, {ta}, {tb};"),
                        out(reg32) d[$first], $(out(reg32) d[$i],)*
                        a = in(reg64) a, b = in(reg64) b, ta = const A, tb = const B, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn add<const A: u32, const B: u32>(d: &mut [f32; $registers], a: u64, b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type,
                            " {{{", $first, "}", $(", {", $i, "}",)* "}}, {a}, {b}, 1, 1, 1, {ta}, {tb};"),
                        inout(reg32) d[$first], $(inout(reg32) d[$i],)*
                        a = in(reg64) a, b = in(reg64) b, ta = const A, tb = const B, options(nostack))
                }
            }

            #[inline(always)]
            pub unsafe fn add_from_registers(d: &mut [f32; $registers], a: [u32; 4], b: u64) {
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    crate::convergent_asm!(
                        concat!("wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type,
                            " {{{", $first, "}", $(", {", $i, "}",)* "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, ",
                            "1, 1, 1, 1;"),
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
modules! { []
    n2 32 16 [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
    ]
    n4 64 32 [
        16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    ]
    n5 80 40 [
        32 33 34 35 36 37 38 39
    ]
    n6 96 48 [
        40 41 42 43 44 45 46 47
    ]
    n7 112 56 [
        48 49 50 51 52 53 54 55
    ]
    n8 128 64 [
        56 57 58 59 60 61 62 63
    ]
    n12 192 96 [
        64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
    ]
    n16 256 128 [
        96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120
        121 122 123 124 125 126 127
    ]
}
