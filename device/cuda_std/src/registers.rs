//! `setmaxnreg`: moves registers from one warpgroup of a block to another (sm_90a).
//!
//! ptxas ignores the instruction unless the entry bounds the threads per block and the blocks per SM, because
//! ptxas must know a thread's initial number of registers.
#[cfg(target_arch = "nvptx64")]
use crate::convergent_asm;
use crate::gpu_only;

/// A number of registers per thread.
pub trait Registers {
    /// The number of registers: a multiple of 8, from 24 to 256.
    const COUNT: u32;
}

/// `setmaxnreg.dec.sync.aligned.u32 COUNT`: keeps `COUNT` registers of this thread and releases the others.
///
/// # Safety
/// - All 128 threads of the warpgroup call it, converged, and each has more than `COUNT` registers. `COUNT`
///   is a multiple of 8 from 24 to 256.
#[inline(always)]
#[gpu_only]
pub unsafe fn setmaxnreg_dec<R: Registers>() {
    // SAFETY: the caller keeps the preconditions.
    unsafe { convergent_asm!("setmaxnreg.dec.sync.aligned.u32 {};", const R::COUNT, options(nostack)) }
}

/// `setmaxnreg.inc.sync.aligned.u32 COUNT`: waits until this thread has `COUNT` registers.
///
/// # Safety
/// - All 128 threads of the warpgroup call it, converged, and each has fewer than `COUNT` registers. `COUNT`
///   is a multiple of 8 from 24 to 256. The block's other warps release enough registers.
#[inline(always)]
#[gpu_only]
pub unsafe fn setmaxnreg_inc<R: Registers>() {
    // SAFETY: the caller keeps the preconditions.
    unsafe { convergent_asm!("setmaxnreg.inc.sync.aligned.u32 {};", const R::COUNT, options(nostack)) }
}
