//! `setmaxnreg`: warpgroups of a block hand registers to each other (sm_90a).
//!
//! Heeded only where the entry bounds the block's threads and the blocks of an SM, so that the assembler
//! knows how many registers a thread starts with.
#[cfg(target_arch = "nvptx64")]
use crate::convergent_asm;
use crate::gpu_only;

/// How many registers a thread asks for.
pub trait Registers {
    /// A multiple of 8, 24 to 256.
    const COUNT: u32;
}

/// `setmaxnreg.dec.sync.aligned.u32 COUNT`: gives back all registers of this thread but `COUNT`.
///
/// # Safety
/// - All 128 threads of the warpgroup, converged, each with more than `COUNT` now; `COUNT` is a multiple of
///   8, 24 to 256.
#[inline(always)]
#[gpu_only]
pub unsafe fn setmaxnreg_dec<R: Registers>() {
    // SAFETY: the caller's promise.
    unsafe { convergent_asm!("setmaxnreg.dec.sync.aligned.u32 {};", const R::COUNT, options(nostack)) }
}

/// `setmaxnreg.inc.sync.aligned.u32 COUNT`: waits until this thread has `COUNT` registers.
///
/// # Safety
/// - All 128 threads of the warpgroup, converged, each with fewer than `COUNT` now; `COUNT` is a multiple
///   of 8, 24 to 256, and the block's other warps give back enough.
#[inline(always)]
#[gpu_only]
pub unsafe fn setmaxnreg_inc<R: Registers>() {
    // SAFETY: the caller's promise.
    unsafe { convergent_asm!("setmaxnreg.inc.sync.aligned.u32 {};", const R::COUNT, options(nostack)) }
}
