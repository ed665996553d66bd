//! TMA, `cp.async.bulk.tensor`: copies of boxes of a tensor that a tensor map describes (sm_90).
//!
//! A thread issues a copy, and TMA executes it in the *asynchronous proxy*. Only two operations order the
//! accesses of this proxy to shared memory with the accesses of threads: [`fence_proxy_async`], and a wait
//! for the mbarrier that the copy completes.
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// `cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes`: copies a box from global to
/// shared memory. The box starts at the coordinates `at`, innermost first. Elements outside of the tensor
/// become zero. The copy subtracts the box's bytes from the mbarrier's transaction count.
///
/// # Safety
/// - `map` is a generic address and a multiple of 64. A tensor map of four dimensions, which the driver has
///   encoded, lies there. The tensor may be read.
/// - `to` is an address of the shared window with room for the map's box, aligned as its swizzle requires. No
///   thread accesses this memory before the phase of `barrier` has ended.
/// - `barrier` is initialised, and its phase expects the box's bytes ([`crate::mbarrier`]).
#[inline(always)]
#[gpu_only]
pub unsafe fn load_4d(to: u32, map: u64, at: [u32; 4], barrier: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes \
             [{}], [{}, {{{}, {}, {}, {}}}], [{}];",
            in(reg32) to, in(reg64) map, in(reg32) at[0], in(reg32) at[1], in(reg32) at[2], in(reg32) at[3],
            in(reg32) barrier, options(nostack))
    }
}

/// [`load_4d`] for a tensor map of five dimensions.
///
/// # Safety
/// - The preconditions of [`load_4d`] hold, with a tensor map of five dimensions.
#[inline(always)]
#[gpu_only]
pub unsafe fn load_5d(to: u32, map: u64, at: [u32; 5], barrier: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes \
             [{}], [{}, {{{}, {}, {}, {}, {}}}], [{}];",
            in(reg32) to, in(reg64) map, in(reg32) at[0], in(reg32) at[1], in(reg32) at[2], in(reg32) at[3],
            in(reg32) at[4], in(reg32) barrier, options(nostack))
    }
}

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`: copies contiguous bytes from global
/// to shared memory, and subtracts their number from the mbarrier's transaction count.
///
/// # Safety
/// - `to`, `from` and `bytes` are multiples of 16. The bytes at `from` may be read. No thread accesses the
///   bytes at `to` before the phase of `barrier` has ended.
/// - `barrier` is initialised, and its phase expects the bytes.
#[inline(always)]
#[gpu_only]
pub unsafe fn load_bytes(to: u32, from: u64, bytes: u32, barrier: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];",
            in(reg32) to, in(reg64) from, in(reg32) bytes, in(reg32) barrier, options(nostack))
    }
}

/// `cp.async.bulk.tensor.4d.global.shared::cta.bulk_group` if `condition` is true: copies a box from shared
/// to global memory. The copy writes no elements outside of the tensor. The instruction has a predicate, so
/// the lanes of a warp stay together.
///
/// # Safety
/// - The preconditions of [`load_4d`] on map and address hold. The tensor may be written. Every thread that
///   wrote the box has executed [`fence_proxy_async`], and a barrier of these threads followed.
/// - No thread writes the box before [`wait_group_read`].
#[inline(always)]
#[gpu_only]
pub unsafe fn store_4d_if(map: u64, at: [u32; 4], from: u32, condition: bool) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("{{", ".reg .pred wanted;", "setp.ne.u32 wanted, {}, 0;",
            "@wanted cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [{}, {{{}, {}, {}, {}}}], [{}];",
            "}}",
            in(reg32) condition as u32, in(reg64) map, in(reg32) at[0], in(reg32) at[1], in(reg32) at[2],
            in(reg32) at[3], in(reg32) from, options(nostack))
    }
}

/// [`store_4d_if`] for a tensor map of five dimensions.
///
/// # Safety
/// - The preconditions of [`store_4d_if`] hold, with a tensor map of five dimensions.
#[inline(always)]
#[gpu_only]
pub unsafe fn store_5d_if(map: u64, at: [u32; 5], from: u32, condition: bool) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("{{", ".reg .pred wanted;", "setp.ne.u32 wanted, {}, 0;",
            "@wanted cp.async.bulk.tensor.5d.global.shared::cta.bulk_group \
             [{}, {{{}, {}, {}, {}, {}}}], [{}];",
            "}}",
            in(reg32) condition as u32, in(reg64) map, in(reg32) at[0], in(reg32) at[1], in(reg32) at[2],
            in(reg32) at[3], in(reg32) at[4], in(reg32) from, options(nostack))
    }
}

/// `cp.async.bulk.commit_group`: closes a group of all stores that this thread has started since its previous
/// group.
#[inline(always)]
#[gpu_only]
pub fn commit_group() {
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) }
}

/// `cp.async.bulk.wait_group.read PENDING`: waits until all groups of this thread's stores, except for the
/// `PENDING` youngest, have read their boxes.
#[inline(always)]
#[gpu_only]
pub fn wait_group_read<const PENDING: u32>() {
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack)) }
}

/// `cp.async.bulk.wait_group 0`: waits until this thread's stores are done.
#[inline(always)]
#[gpu_only]
pub fn wait_all() {
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!("cp.async.bulk.wait_group 0;", options(nostack)) }
}

/// `fence.proxy.async.shared::cta`: makes this thread's earlier writes to shared memory visible to TMA and
/// `wgmma`.
#[inline(always)]
#[gpu_only]
pub fn fence_proxy_async() {
    // SAFETY: the instruction has no preconditions.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
