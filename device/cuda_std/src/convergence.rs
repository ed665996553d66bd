//! [`convergent_asm!`](crate::convergent_asm): inline assembly for instructions that all lanes of a warp
//! execute together.
//!
//! LLVM may clone code into both arms of a divergent branch, or sink it into one arm, unless the code
//! contains a `convergent` instruction. Intrinsics of barriers, shuffles and votes are convergent; inline
//! assembly never is.

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.activemask"]
    fn activemask() -> u32;
}

/// Marks its basic block as convergent, so that LLVM neither clones nor sinks the block. `cuda_builder`
/// removes the guard's instruction from the PTX, because ptxas and the simulator know the convergent
/// instructions.
#[doc(hidden)]
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub fn guard() {
    // SAFETY: the instruction has no preconditions.
    let _ = unsafe { activemask() };
}

/// `asm!` for an instruction with `.sync` or `.aligned`, which all lanes of a warp must reach at the same
/// place. It accepts the arguments of [`core::arch::asm!`], except for `pure`, because LLVM may move a pure
/// instruction.
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
