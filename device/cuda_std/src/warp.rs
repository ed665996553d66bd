//! Collective operations of a warp's 32 lanes.
use crate::gpu_only;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_sync_bfly(mask: u32, x: u32, lanes: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_sync_idx(mask: u32, x: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_sync_up(mask: u32, x: u32, lanes: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_sync_add(x: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_sync_umax(x: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    fn redux_sync_or(x: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any_sync(mask: u32, p: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(mask: u32, p: bool) -> u32;
}

/// `bar.warp.sync`: waits for all lanes of the warp. All lanes then see each other's earlier writes to
/// memory.
///
/// # Safety
/// - All 32 lanes execute the same call.
#[inline(always)]
#[gpu_only]
pub unsafe fn sync() {
    // SAFETY: the caller keeps the preconditions.
    unsafe { bar_warp_sync(!0) }
}

/// `shfl.sync.bfly.b32`: returns the value of lane `i ^ lanes`, where `i` is this lane's index.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn shuffle_xor(x: f32, lanes: u32) -> f32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { f32::from_bits(shfl_sync_bfly(!0, x.to_bits(), lanes, 31)) }
}

/// `shfl.sync.idx.b32`: returns the value of lane `lane`.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn shuffle(x: u32, lane: u32) -> u32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { shfl_sync_idx(!0, x, lane, 31) }
}

/// `shfl.sync.up.b32`: returns the value of lane `i - lanes`, where `i` is this lane's index, or the lane's
/// own value if `i < lanes`.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn shuffle_up(x: u32, lanes: u32) -> u32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { shfl_sync_up(!0, x, lanes, 0) }
}

/// `redux.sync.add.u32`: returns the sum of all lanes' values.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn sum(x: u32) -> u32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { redux_sync_add(x, !0) }
}

/// `redux.sync.max.u32`: returns the largest of all lanes' values.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn largest(x: u32) -> u32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { redux_sync_umax(x, !0) }
}

/// `vote.sync.any.pred`: returns true in all lanes if `p` is true in any lane.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn any(p: bool) -> bool {
    // SAFETY: the caller keeps the preconditions.
    unsafe { vote_any_sync(!0, p) }
}

/// `vote.sync.ballot.b32`: bit `l` of the result is `p` of lane `l`.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn ballot(p: bool) -> u32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { vote_ballot_sync(!0, p) }
}

/// `redux.sync.or.b32`: returns the bitwise OR of all lanes' values. ptxas writes the result to a uniform
/// register.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn or(x: u32) -> u32 {
    // SAFETY: the caller keeps the preconditions.
    unsafe { redux_sync_or(x, !0) }
}
