//! What the 32 lanes of a warp do together.
use crate::gpu_only;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_sync_bfly(mask: u32, x: u32, lanes: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_sync_idx(mask: u32, x: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any_sync(mask: u32, p: bool) -> bool;
}

/// `bar.warp.sync`: what the lanes wrote to memory before is seen by all of them after.
///
/// # Safety
/// - All 32 lanes reach this very call.
#[inline(always)]
#[gpu_only]
pub unsafe fn sync() {
    // SAFETY: the caller's promise.
    unsafe { bar_warp_sync(!0) }
}

/// `shfl.sync.bfly.b32`: the value of the lane whose number differs by XOR with `lanes`.
///
/// # Safety
/// - All 32 lanes, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn shuffle_xor(x: f32, lanes: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { f32::from_bits(shfl_sync_bfly(!0, x.to_bits(), lanes, 31)) }
}

/// `shfl.sync.idx.b32`: the value of lane `lane`.
///
/// # Safety
/// - All 32 lanes, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn shuffle(x: u32, lane: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { shfl_sync_idx(!0, x, lane, 31) }
}

/// `vote.sync.any.pred`: true for all lanes if `p` is true for one.
///
/// # Safety
/// - All 32 lanes, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn any(p: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { vote_any_sync(!0, p) }
}
