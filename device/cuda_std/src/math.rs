//! Arithmetic instructions. The PTX ISA lists the errors of these functions.
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.ex2.approx.ftz.f"]
    fn ex2_approx_ftz(x: f32) -> f32;
    #[link_name = "llvm.nvvm.lg2.approx.ftz.f"]
    fn lg2_approx_ftz(x: f32) -> f32;
    #[link_name = "llvm.nvvm.rcp.approx.ftz.f"]
    fn rcp_approx_ftz(x: f32) -> f32;
    #[link_name = "llvm.nvvm.sqrt.approx.ftz.f"]
    fn sqrt_approx_ftz(x: f32) -> f32;
    #[link_name = "llvm.nvvm.rsqrt.approx.ftz.f"]
    fn rsqrt_approx_ftz(x: f32) -> f32;
}

/// `ex2.approx.ftz.f32`: 2^x, with an error of at most 2 ulp. `ex2(-inf)` is 0.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn ex2(x: f32) -> f32 {
    // SAFETY: the instruction has no preconditions.
    unsafe { ex2_approx_ftz(x) }
}

/// Host version: returns the standard library's result.
#[cfg(not(target_arch = "nvptx64"))]
pub fn ex2(x: f32) -> f32 {
    x.exp2()
}

/// `lg2.approx.ftz.f32`: log2 x, with an error of at most 2^-22. `lg2(0)` is -inf.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn lg2(x: f32) -> f32 {
    // SAFETY: the instruction has no preconditions.
    unsafe { lg2_approx_ftz(x) }
}

/// Host version: returns the standard library's result.
#[cfg(not(target_arch = "nvptx64"))]
pub fn lg2(x: f32) -> f32 {
    x.log2()
}

/// `rcp.approx.ftz.f32`: 1 / x, with an error of at most 1 ulp.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn rcp(x: f32) -> f32 {
    // SAFETY: the instruction has no preconditions.
    unsafe { rcp_approx_ftz(x) }
}

/// Host version: returns the standard library's result.
#[cfg(not(target_arch = "nvptx64"))]
pub fn rcp(x: f32) -> f32 {
    1.0 / x
}

/// `sqrt.approx.ftz.f32`: the square root of x, with a relative error of at most 2^-23. NaN below 0.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn sqrt(x: f32) -> f32 {
    // SAFETY: the instruction has no preconditions.
    unsafe { sqrt_approx_ftz(x) }
}

/// Host version: returns the standard library's result.
#[cfg(not(target_arch = "nvptx64"))]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// `rsqrt.approx.ftz.f32`: 1 / the square root of x, with a relative error of at most 2^-22.9. `rsqrt(0)` is
/// infinity. NaN below 0.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn rsqrt(x: f32) -> f32 {
    // SAFETY: the instruction has no preconditions.
    unsafe { rsqrt_approx_ftz(x) }
}

/// Host version: returns the standard library's result.
#[cfg(not(target_arch = "nvptx64"))]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// `fma.rn.f32`: a * b + c, rounded once.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    core::intrinsics::fmaf32(a, b, c)
}

/// Host version: the result equals the result of the device.
#[cfg(not(target_arch = "nvptx64"))]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// `cvt.rn.f16x2.f32`: packs two f32 as two f16, with `lo` in the low half.
#[inline(always)]
#[gpu_only]
pub fn pack_f16(lo: f32, hi: f32) -> u32 {
    let y: u32;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {}, {}, {};",
            out(reg32) y, in(reg32) hi, in(reg32) lo, options(pure, nomem, nostack))
    }
    y
}

/// `cvt.rn.bf16x2.f32`: packs two f32 as two bf16, with `lo` in the low half.
#[inline(always)]
#[gpu_only]
pub fn pack_bf16(lo: f32, hi: f32) -> u32 {
    let y: u32;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {}, {}, {};",
            out(reg32) y, in(reg32) hi, in(reg32) lo, options(pure, nomem, nostack))
    }
    y
}

/// `cvt.rn.satfinite.e4m3x2.f32`: packs two f32 as two e4m3, with `lo` in the low byte. Values beyond +-448
/// become +-448; NaN stays NaN. The instruction needs sm_89.
#[inline(always)]
#[gpu_only]
pub fn pack_e4m3(lo: f32, hi: f32) -> u16 {
    let y: u16;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("cvt.rn.satfinite.e4m3x2.f32 {}, {}, {};",
            out(reg16) y, in(reg32) hi, in(reg32) lo, options(pure, nomem, nostack))
    }
    y
}

/// `cvt.rn.satfinite.e4m3x2.f32`, twice: packs four f32 as four e4m3, with `x[0]` in the lowest byte. See
/// [`pack_e4m3`].
#[inline(always)]
#[gpu_only]
pub fn pack_e4m3_x4(x: [f32; 4]) -> u32 {
    let y: u32;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("{{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, {2}, {1}; \
              cvt.rn.satfinite.e4m3x2.f32 hi, {4}, {3}; mov.b32 {0}, {{lo, hi}}; }}",
            out(reg32) y, in(reg32) x[0], in(reg32) x[1], in(reg32) x[2], in(reg32) x[3],
            options(pure, nomem, nostack))
    }
    y
}

/// `cvt.f32.f16`, twice: converts two f16 to f32, the low half first. The conversion is exact.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn unpack_f16(x: u32) -> [f32; 2] {
    let (lo, hi): (f32, f32);
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("{{ .reg .b16 lo, hi; mov.b32 {{lo, hi}}, {2}; cvt.f32.f16 {0}, lo; cvt.f32.f16 {1}, hi; }}",
            out(reg32) lo, out(reg32) hi, in(reg32) x, options(pure, nomem, nostack))
    }
    [lo, hi]
}

/// Host version: the result equals the result of the device.
#[cfg(not(target_arch = "nvptx64"))]
pub fn unpack_f16(x: u32) -> [f32; 2] {
    [x & 0xffff, x >> 16].map(|half| {
        let (exponent, mantissa) = (half >> 10 & 31, half & 1023);
        let size = match exponent {
            0 => mantissa as f32 * 2f32.powi(-24),
            31 if mantissa == 0 => f32::INFINITY,
            31 => f32::NAN,
            _ => (1024 + mantissa) as f32 * 2f32.powi(exponent as i32 - 25),
        };
        if half >> 15 == 1 { -size } else { size }
    })
}

/// Converts two bf16 to f32, the low half first. The conversion is exact.
#[inline(always)]
pub fn unpack_bf16(x: u32) -> [f32; 2] {
    [f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000)]
}

/// `mov.b32`: returns `x`, and hides the value from the compiler. The compiler computes no value that depends
/// on the result before this call, and does not unroll a loop that the result bounds.
#[inline(always)]
#[gpu_only]
pub fn opaque(x: u32) -> u32 {
    let y;
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!("mov.b32 {}, {};", out(reg32) y, in(reg32) x, options(nomem, nostack)) }
    y
}

/// `.pragma "nounroll"`: keeps ptxas from unrolling the loop whose body begins with this call.
#[inline(always)]
#[gpu_only]
pub fn stay_a_loop() {
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!(".pragma \"nounroll\";", options(nomem, nostack)) }
}

/// Returns `x`, and forces LLVM to compute `x` before this call. Without this function, LLVM sinks a value to
/// its first use. The function emits a comment in the PTX, not an instruction.
#[inline(always)]
#[gpu_only]
pub fn in_order(x: f32) -> f32 {
    let mut x = x;
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg32) x, options(nomem, nostack)) }
    x
}

/// [`in_order`] for a 32-bit word.
#[inline(always)]
#[gpu_only]
pub fn in_order_b32(x: u32) -> u32 {
    let mut x = x;
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg32) x, options(nomem, nostack)) }
    x
}

/// [`opaque`] for 64 bits. The function emits a comment in the PTX, not an instruction.
#[inline(always)]
#[gpu_only]
pub fn opaque_b64(x: u64) -> u64 {
    let mut x = x;
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg64) x, options(nomem, nostack)) }
    x
}

/// [`opaque_b64`], but the compiler may move the call, or omit a call with the same value.
#[inline(always)]
#[gpu_only]
pub fn unknown_b64(x: u64) -> u64 {
    let mut x = x;
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg64) x, options(pure, nomem, nostack)) }
    x
}

/// `cvt.rn.f16x2.e4m3x2`, twice: converts four e4m3 to four f16, the low pair first. The conversion is exact.
/// The instruction needs sm_89.
#[inline(always)]
#[gpu_only]
pub fn unpack_e4m3(x: u32) -> [u32; 2] {
    let (lo, hi): (u32, u32);
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("{{ .reg .b16 lo, hi; mov.b32 {{lo, hi}}, {2}; \
              cvt.rn.f16x2.e4m3x2 {0}, lo; cvt.rn.f16x2.e4m3x2 {1}, hi; }}",
            out(reg32) lo, out(reg32) hi, in(reg32) x, options(pure, nomem, nostack))
    }
    [lo, hi]
}

/// `prmt.b32` within one word: byte `i` of the result is byte `order >> 4 * i & 7` of `x`.
#[inline(always)]
#[gpu_only]
pub fn permute_bytes(x: u32, order: u32) -> u32 {
    let y;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("prmt.b32 {}, {}, 0, {};",
            out(reg32) y, in(reg32) x, in(reg32) order, options(pure, nomem, nostack))
    }
    y
}

/// `prmt.b32`: byte `i` of the result is byte `order >> 4 * i & 7` of the eight bytes of `x` and `y`.
#[inline(always)]
#[gpu_only]
pub fn permute_bytes_of(x: u32, y: u32, order: u32) -> u32 {
    let z;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("prmt.b32 {}, {}, {}, {};",
            out(reg32) z, in(reg32) x, in(reg32) y, in(reg32) order, options(pure, nomem, nostack))
    }
    z
}

/// `sub.rn.f16x2`: subtracts two pairs of f16.
#[inline(always)]
#[gpu_only]
pub fn subtract_f16(x: u32, y: u32) -> u32 {
    let z: u32;
    // SAFETY: the instruction has no preconditions.
    unsafe {
        asm!("sub.rn.f16x2 {}, {}, {};",
            out(reg32) z, in(reg32) x, in(reg32) y, options(pure, nomem, nostack))
    }
    z
}
