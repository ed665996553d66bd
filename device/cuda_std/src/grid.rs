//! `griddepcontrol`: the order of kernels under programmatic dependent launch (sm_90 and later).
//!
//! None of these instructions is collective: each thread executes them by itself, so LLVM may clone the
//! `asm!`. LLVM's intrinsics access no memory, so LLVM could move a load ahead of the wait; `asm!` is a
//! barrier for loads and stores.
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// `griddepcontrol.wait`: waits until the kernels before this one have ended, and this thread sees all of
/// their writes. Returns at once in a kernel that began after them.
#[inline(always)]
#[gpu_only]
pub fn wait() {
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) }
}

/// `griddepcontrol.launch_dependents`: the blocks of the next kernel may begin as soon as every block of this
/// kernel has executed the instruction or has ended. The instruction orders no access to memory.
#[inline(always)]
#[gpu_only]
pub fn launch_dependents() {
    // SAFETY: the instruction has no preconditions. A kernel that begins early waits before it reads what
    // this kernel writes.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack)) }
}
