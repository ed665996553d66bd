//! [`convergent_asm!`](crate::convergent_asm): assembly of instructions that a warp executes together.
//!
//! LLVM may clone code into both arms of a branch that lanes take differently, or sink it into one arm,
//! unless the code contains a `convergent` call. Intrinsics of barriers, shuffles and votes are convergent;
//! assembly never is.

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.activemask"]
    fn activemask() -> u32;
}

/// A call that is convergent to LLVM, so that LLVM keeps the whole block of code around it. `cuda_builder`
/// removes the instruction again: ptxas and the simulator know which instructions a warp executes together.
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
/// `cuda_builder` refuses such an instruction in a plain `asm!`. If LLVM has a convergent intrinsic, use the
/// intrinsic.
#[macro_export]
macro_rules! convergent_asm {
    ($($assembly:tt)*) => {{
        $crate::convergence::guard();
        ::core::arch::asm!($($assembly)*)
    }};
}
