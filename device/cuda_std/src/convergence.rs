//! [`convergent_asm!`](crate::convergent_asm): how assembly of instructions that a warp executes together is
//! written.
//!
//! LLVM may clone code into both arms of a branch that lanes take differently, or sink it into one of them,
//! unless something there is `convergent`. Intrinsics of barriers, shuffles and votes are; assembly never is.

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.activemask"]
    fn activemask() -> u32;
}

/// Convergent to LLVM, which for its sake leaves the block of code whole that it stands in. `cuda_builder`
/// takes the instruction out again: ptxas and the simulator know by themselves what a warp does together.
#[doc(hidden)]
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn guard() {
    // SAFETY: no preconditions.
    let _ = unsafe { activemask() };
}

/// `asm!` for an instruction with `.sync` or `.aligned`, which all lanes of a warp must reach at the same
/// place. It accepts the arguments of [`core::arch::asm!`], except `pure`: a pure instruction may be moved.
///
/// `cuda_builder` refuses such an instruction in a plain `asm!`. Where LLVM has a convergent intrinsic, that
/// is simpler.
#[macro_export]
macro_rules! convergent_asm {
    ($($assembly:tt)*) => {{
        $crate::convergence::guard();
        ::core::arch::asm!($($assembly)*)
    }};
}
