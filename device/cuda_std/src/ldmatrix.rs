//! `ldmatrix`: loads four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp.
//! `stmatrix`: stores four such matrices (sm_90). `movmatrix`: transposes one matrix in registers.
//!
//! Lane `l` gives the address of row `l % 8` of matrix `l / 8`. Afterwards, register `i` of lane `l` holds
//! elements `2 * (l % 4)` and `2 * (l % 4) + 1` of row `l / 4` of matrix `i`. With `.trans`, the register
//! holds these elements of column `l / 4`.
#[cfg(target_arch = "nvptx64")]
use crate::convergent_asm;
use crate::gpu_only;

/// `ldmatrix.sync.aligned.m8n8.x4.shared.b16`: loads four matrices.
///
/// # Safety
/// - All 32 lanes call this function, converged.
/// - `row` is an address of the shared window and a multiple of 16, and 16 bytes may be read there.
#[inline(always)]
#[gpu_only]
pub unsafe fn ldmatrix_x4(row: u32) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        convergent_asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) r[0], out(reg32) r[1], out(reg32) r[2], out(reg32) r[3],
            in(reg32) row, options(nostack, readonly))
    }
    r
}

/// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`: loads the transposes of four matrices.
///
/// # Safety
/// The preconditions of [`ldmatrix_x4`] must hold.
#[inline(always)]
#[gpu_only]
pub unsafe fn ldmatrix_x4_trans(row: u32) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        convergent_asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) r[0], out(reg32) r[1], out(reg32) r[2], out(reg32) r[3],
            in(reg32) row, options(nostack, readonly))
    }
    r
}

/// `stmatrix.sync.aligned.m8n8.x4.shared.b16`: lane `l` gives the address of row `l % 8` of matrix `l / 8`.
/// The registers have the layout of [`ldmatrix_x4`].
///
/// # Safety
/// - All 32 lanes call this function, converged.
/// - `row` is an address of the shared window and a multiple of 16, and 16 bytes may be written there.
#[inline(always)]
#[gpu_only]
pub unsafe fn stmatrix_x4(row: u32, r: [u32; 4]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        convergent_asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{}], {{{}, {}, {}, {}}};",
            in(reg32) row, in(reg32) r[0], in(reg32) r[1], in(reg32) r[2], in(reg32) r[3], options(nostack))
    }
}

/// `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16`: stores the transposes of four matrices.
///
/// # Safety
/// The preconditions of [`stmatrix_x4`] must hold.
#[inline(always)]
#[gpu_only]
pub unsafe fn stmatrix_x4_trans(row: u32, r: [u32; 4]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        convergent_asm!("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{}], {{{}, {}, {}, {}}};",
            in(reg32) row, in(reg32) r[0], in(reg32) r[1], in(reg32) r[2], in(reg32) r[3], options(nostack))
    }
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`: transposes an 8x8 matrix of 16-bit elements in the warp's
/// registers. Lane `l` holds elements `2 * (l % 4)` and `2 * (l % 4) + 1` of row `l / 4`.
///
/// # Safety
/// - All 32 lanes call this function, converged.
#[inline(always)]
#[gpu_only]
pub unsafe fn movmatrix_trans(x: u32) -> u32 {
    let y;
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        convergent_asm!("movmatrix.sync.aligned.m8n8.trans.b16 {}, {};",
            out(reg32) y, in(reg32) x, options(nomem, nostack))
    }
    y
}
