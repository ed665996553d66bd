//! `setmaxnreg`: warpgroups of a block hand registers to each other (sm_90a).
//!
//! ptxas heeds `setmaxnreg` only if the entry bounds the threads of a block and the blocks of an SM. ptxas
//! then knows how many registers a thread starts with.
#[cfg(target_arch = "nvptx64")]
use crate::convergent_asm;
use crate::gpu_only;

/// The number of registers that a thread asks for.
pub trait Registers {
    /// A multiple of 8, 24 to 256.
    const COUNT: u32;
}

/// `setmaxnreg.dec.sync.aligned.u32 COUNT`: keeps `COUNT` registers of this thread and gives back the others.
///
/// # Safety
/// - All 128 threads of the warpgroup call it, converged, and each has more than `COUNT` registers. `COUNT`
///   is a multiple of 8, 24 to 256.
#[inline(always)]
#[gpu_only]
pub unsafe fn setmaxnreg_dec<R: Registers>() {
    // SAFETY: the caller's promise.
    unsafe { convergent_asm!("setmaxnreg.dec.sync.aligned.u32 {};", const R::COUNT, options(nostack)) }
}

/// `setmaxnreg.inc.sync.aligned.u32 COUNT`: waits until this thread has `COUNT` registers.
///
/// # Safety
/// - All 128 threads of the warpgroup call it, converged, and each has fewer than `COUNT` registers. `COUNT`
///   is a multiple of 8, 24 to 256. The block's other warps give back enough registers.
#[inline(always)]
#[gpu_only]
pub unsafe fn setmaxnreg_inc<R: Registers>() {
    // SAFETY: the caller's promise.
    unsafe { convergent_asm!("setmaxnreg.inc.sync.aligned.u32 {};", const R::COUNT, options(nostack)) }
}
