//! `cp.async`: copies from global to shared memory that run behind the thread's back (sm_80 and later).
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// `cp.async.cg.shared.global [dst], [src], 16`: 16 bytes, past the L1 cache.
///
/// # Safety
/// - `dst` is an address of the shared window, `src` a global one, both multiples of 16.
/// - 16 bytes may be read at `src` and written at `dst`; nobody touches those at `dst` before the copy is waited for.
#[inline(always)]
#[gpu_only]
pub unsafe fn cp_async(dst: u32, src: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("cp.async.cg.shared.global [{}], [{}], 16;", in(reg32) dst, in(reg64) src, options(nostack)) }
}

/// `cp.async.cg.shared.global [dst], [src], 16, size`: 16 bytes, or with `present` false 16 zero bytes, and `src` is not read.
///
/// # Safety
/// As [`cp_async`]; of `src` only where `present`.
#[inline(always)]
#[gpu_only]
pub unsafe fn cp_async_or_zero(dst: u32, src: u64, present: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cp.async.cg.shared.global [{}], [{}], 16, {};",
            in(reg32) dst, in(reg64) src, in(reg32) if present { 16u32 } else { 0 }, options(nostack))
    }
}

/// `cp.async.commit_group`: makes a group of this thread's copies since the last one.
#[inline(always)]
#[gpu_only]
pub fn commit_group() {
    // SAFETY: no preconditions.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// `cp.async.wait_group PENDING`: waits until at most the `PENDING` youngest groups of this thread are still under way.
#[inline(always)]
#[gpu_only]
pub fn wait_group<const PENDING: usize>() {
    // SAFETY: no preconditions.
    unsafe { asm!("cp.async.wait_group {};", const PENDING, options(nostack)) }
}
