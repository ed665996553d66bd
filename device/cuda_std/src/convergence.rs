//! [`convergent_asm!`](crate::convergent_asm): inline assembly for instructions that a warp executes
//! together.
//!
//! LLVM may clone code into both arms of a divergent branch, or sink it into one arm, unless the code
//! contains a `convergent` instruction. Intrinsics of barriers, shuffles and votes are convergent; inline
//! assembly never is.

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.activemask"]
    fn activemask() -> u32;
}

/// Marks its basic block as convergent for LLVM, which then neither clones nor sinks the block.
/// `cuda_builder` removes the guard's instruction from the PTX: ptxas and the simulator know the convergent
/// instructions.
#[doc(hidden)]
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn guard() {
    // SAFETY: the instruction has no preconditions.
    let _ = unsafe { activemask() };
}

/// `asm!` for an instruction with `.sync` or `.aligned`, which all lanes of a warp must reach at the same
/// place. It accepts the arguments of [`core::arch::asm!`], except `pure`: a pure instruction may be moved.
///
/// `cuda_builder` refuses such an instruction in a plain `asm!`. If LLVM has a convergent intrinsic, use the
/// intrinsic instead.
#[macro_export]
macro_rules! convergent_asm {
    ($($assembly:tt)*) => {{
        $crate::convergence::guard();
        ::core::arch::asm!($($assembly)*)
    }};
}
