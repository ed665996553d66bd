//! Where a thread stands.
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx;

/// `%tid.x`.
#[inline(always)]
#[gpu_only]
pub fn thread_idx_x() -> u32 {
    // SAFETY: no preconditions.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

/// `%ctaid.x`.
#[inline(always)]
#[gpu_only]
pub fn block_idx_x() -> u32 {
    // SAFETY: no preconditions.
    unsafe { nvptx::_block_idx_x() as u32 }
}

/// `%nctaid.x`.
#[inline(always)]
#[gpu_only]
pub fn grid_dim_x() -> u32 {
    // SAFETY: no preconditions.
    unsafe { nvptx::_grid_dim_x() as u32 }
}
