//! Barriers of the thread block.
use crate::gpu_only;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_cta_sync_all(id: u32);
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_cta_red_or_all(id: u32, p: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_cta_sync_count(id: u32, threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_cta_arrive_count(id: u32, threads: u32);
}

/// `bar.sync 0`: waits for every thread of the block. All threads then see each other's earlier writes to
/// shared memory.
///
/// # Safety
/// - Every thread of the block executes the same call, and every warp is converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn sync_threads() {
    // SAFETY: the caller keeps the preconditions.
    unsafe { barrier_cta_sync_all(0) }
}

/// `bar.red.or.pred 0`: like [`sync_threads`], but returns true to every thread if `p` is true for any
/// thread.
///
/// # Safety
/// The preconditions of [`sync_threads`] must hold.
#[inline(always)]
#[gpu_only]
pub unsafe fn any_thread(p: bool) -> bool {
    // SAFETY: the caller keeps the preconditions.
    unsafe { barrier_cta_red_or_all(0, p) }
}

/// `bar.sync id, threads`: waits until `threads` threads of the block have arrived at barrier `id`.
///
/// # Safety
/// - `id` is below 16. `threads` is a multiple of 32. All arriving threads pass the same values.
/// - The warp is converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn sync_named(id: u32, threads: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe { barrier_cta_sync_count(id, threads) }
}

/// `bar.arrive id, threads`: arrives at barrier `id` without waiting.
///
/// # Safety
/// The preconditions of [`sync_named`] must hold.
#[inline(always)]
#[gpu_only]
pub unsafe fn arrive_named(id: u32, threads: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe { barrier_cta_arrive_count(id, threads) }
}
