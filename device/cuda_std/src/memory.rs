//! Loads and stores of shared and global memory, and the address of dynamic shared memory.
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::{asm, global_asm};

// rustc cannot declare dynamic shared memory, so this assembly declares it. No swizzle needs an alignment
// above 1024.
#[cfg(target_arch = "nvptx64")]
global_asm!(".extern .shared .align 1024 .b8 dynamic_smem[];");

/// Address of the block's dynamic shared memory in the shared window, a multiple of 1024.
#[inline(always)]
#[gpu_only]
pub fn dynamic_smem() -> u32 {
    let address: u32;
    // SAFETY: the instruction only takes an address.
    unsafe { asm!("mov.u32 {}, dynamic_smem;", out(reg32) address, options(pure, nomem, nostack)) }
    address
}

/// `cvta.shared.u64`: converts an address of the shared window to a generic address.
#[inline(always)]
#[gpu_only]
pub fn generic(shared: u32) -> u64 {
    let address: u64;
    // SAFETY: the instruction only converts an address.
    unsafe {
        asm!("cvta.shared.u64 {}, {};", out(reg64) address, in(reg64) u64::from(shared),
            options(pure, nomem, nostack))
    }
    address
}

/// `st.shared.b32`: stores one word.
///
/// # Safety
/// - `address` is in the shared window and a multiple of 4. This thread may write 4 bytes there now.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_shared_b32(address: u32, x: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe { asm!("st.shared.b32 [{}], {};", in(reg32) address, in(reg32) x, options(nostack)) }
}

/// `st.shared.v2.b32`: stores two words.
///
/// # Safety
/// - `address` is in the shared window and a multiple of 8. This thread may write 8 bytes there now.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_shared_v2_b32(address: u32, x: [u32; 2]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("st.shared.v2.b32 [{}], {{{}, {}}};",
            in(reg32) address, in(reg32) x[0], in(reg32) x[1], options(nostack))
    }
}

/// `st.shared.v4.b32`: stores four words.
///
/// # Safety
/// - `address` is in the shared window and a multiple of 16. This thread may write 16 bytes there now.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_shared_v4_b32(address: u32, x: [u32; 4]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};",
            in(reg32) address, in(reg32) x[0], in(reg32) x[1], in(reg32) x[2], in(reg32) x[3],
            options(nostack))
    }
}

/// `ld.shared.b32`: loads one word.
///
/// # Safety
/// - `address` is in the shared window and a multiple of 4. This thread may read 4 bytes there now.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_shared_b32(address: u32) -> u32 {
    let r;
    // SAFETY: the caller keeps the preconditions.
    unsafe { asm!("ld.shared.b32 {}, [{}];", out(reg32) r, in(reg32) address, options(nostack, readonly)) }
    r
}

/// `ld.shared.v4.b32`: loads four words.
///
/// # Safety
/// - `address` is in the shared window and a multiple of 16. This thread may read 16 bytes there now.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_shared_v4_b32(address: u32) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) r[0], out(reg32) r[1], out(reg32) r[2], out(reg32) r[3],
            in(reg32) address, options(nostack, readonly))
    }
    r
}

/// `ld.shared.v4.b32` if `condition` is true; otherwise returns zeros. The instruction has a predicate, so
/// the lanes of a warp stay together.
///
/// # Safety
/// - The preconditions of [`ld_shared_v4_b32`] must hold if `condition` is true.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_shared_v4_b32_if(address: u32, condition: bool) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("{{", ".reg .pred wanted;", "setp.ne.u32 wanted, {}, 0;",
            "@wanted ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];", "}}",
            in(reg32) condition as u32, inout(reg32) r[0], inout(reg32) r[1], inout(reg32) r[2],
            inout(reg32) r[3], in(reg32) address, options(nostack, readonly))
    }
    r
}

/// `ld.shared.v2.b32`: loads two words.
///
/// # Safety
/// - `address` is in the shared window and a multiple of 8. This thread may read 8 bytes there now.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_shared_v2_b32(address: u32) -> [u32; 2] {
    let mut r = [0; 2];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("ld.shared.v2.b32 {{{}, {}}}, [{}];",
            out(reg32) r[0], out(reg32) r[1], in(reg32) address, options(nostack, readonly))
    }
    r
}

/// `ld.global.b32`: loads one word.
///
/// # Safety
/// - `address` is a global address and a multiple of 4, and 4 bytes may be read there.
#[inline(always)]
#[cfg(target_arch = "nvptx64")]
pub unsafe fn ld_global_b32(address: u64) -> u32 {
    let r;
    // SAFETY: the caller keeps the preconditions.
    unsafe { asm!("ld.global.b32 {}, [{}];", out(reg32) r, in(reg64) address, options(nostack, readonly)) }
    r
}

/// Host version: reads a copy of device memory ([`crate::host::with_memory`]), and panics without one.
///
/// # Safety
/// - There are no preconditions: every address is allowed.
#[cfg(not(target_arch = "nvptx64"))]
pub unsafe fn ld_global_b32(address: u64) -> u32 {
    u32::from_le_bytes(crate::host::load(address))
}

/// `ld.global.nc.b32`: loads memory that no thread writes while the kernel runs. Host version: as that of
/// [`ld_global_b32`].
///
/// # Safety
/// - `address` is a global address and a multiple of 4, and 4 bytes may be read there.
/// - No thread writes this memory before the launch has ended.
#[inline(always)]
pub unsafe fn ld_global_nc_b32(address: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let r;
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            asm!("ld.global.nc.b32 {}, [{}];", out(reg32) r, in(reg64) address, options(pure, nomem, nostack))
        }
        r
    }
    #[cfg(not(target_arch = "nvptx64"))]
    u32::from_le_bytes(crate::host::load(address))
}

/// [`ld_global_nc_b32`] if `present` is true; otherwise returns 0 without a load. The load has no branch.
///
/// # Safety
/// The preconditions of [`ld_global_nc_b32`] must hold if `present` is true.
#[inline(always)]
pub unsafe fn ld_global_nc_b32_if(address: u64, present: bool) -> u32 {
    let mut r = 0;
    // SAFETY: the caller keeps the preconditions.
    #[cfg(target_arch = "nvptx64")]
    unsafe {
        asm!("{{", ".reg .pred present;", "setp.ne.u32 present, {present}, 0;",
            "@present ld.global.nc.b32 {r}, [{address}];", "}}",
            r = inout(reg32) r, address = in(reg64) address, present = in(reg32) present as u32,
            options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    if present {
        r = u32::from_le_bytes(crate::host::load(address));
    }
    r
}

/// `ld.global.nc.b8`: loads one byte of memory that no thread writes while the kernel runs, and fills the
/// upper bits with zeros. Host version: as that of [`ld_global_b32`].
///
/// # Safety
/// - `address` is a global address, and 1 byte may be read there.
/// - No thread writes this memory before the launch has ended.
#[inline(always)]
pub unsafe fn ld_global_nc_b8(address: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let r;
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            asm!("ld.global.nc.b8 {}, [{}];", out(reg32) r, in(reg64) address, options(pure, nomem, nostack))
        }
        r
    }
    #[cfg(not(target_arch = "nvptx64"))]
    u32::from(crate::host::load::<1>(address)[0])
}

/// `ld.global.nc.b32` if `present` is true; otherwise returns 0 without a load. The load has no branch and
/// stays in program order. Several such loads therefore overlap, and start before copies that follow them in
/// the program.
///
/// # Safety
/// The preconditions of [`ld_global_nc_b32`] must hold if `present` is true.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_global_nc_b32_or_zero(address: u64, present: bool) -> u32 {
    let r;
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("{{", ".reg .pred present;", "setp.ne.u32 present, {present}, 0;", "mov.b32 {r}, 0;",
            "@present ld.global.nc.b32 {r}, [{address}];", "}}",
            r = out(reg32) r, address = in(reg64) address, present = in(reg32) present as u32,
            options(nostack, readonly))
    }
    r
}

/// `ld.global.v2.b32`: loads two words.
///
/// # Safety
/// - `address` is a global address and a multiple of 8, and 8 bytes may be read there.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_global_v2_b32(address: u64) -> [u32; 2] {
    let mut r = [0; 2];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("ld.global.v2.b32 {{{}, {}}}, [{}];",
            out(reg32) r[0], out(reg32) r[1], in(reg64) address, options(nostack, readonly))
    }
    r
}

/// `ld.global.b64`: loads 64 bits.
///
/// # Safety
/// - `address` is a global address and a multiple of 8, and 8 bytes may be read there.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_global_b64(address: u64) -> u64 {
    let r;
    // SAFETY: the caller keeps the preconditions.
    unsafe { asm!("ld.global.b64 {}, [{}];", out(reg64) r, in(reg64) address, options(nostack, readonly)) }
    r
}

/// `ld.global.v4.b32`: loads four words.
///
/// # Safety
/// - `address` is a global address and a multiple of 16, and 16 bytes may be read there.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_global_v4_b32(address: u64) -> [u32; 4] {
    let mut r = [0; 4];
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) r[0], out(reg32) r[1], out(reg32) r[2], out(reg32) r[3],
            in(reg64) address, options(nostack, readonly))
    }
    r
}

/// `st.global.b32`: stores one word.
///
/// # Safety
/// - `address` is a global address and a multiple of 4, and 4 bytes may be written there.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_global_b32(address: u64, x: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe { asm!("st.global.b32 [{}], {};", in(reg64) address, in(reg32) x, options(nostack)) }
}

/// `st.global.b32` if `condition` is true. The instruction has a predicate, so the lanes of a warp stay
/// together.
///
/// # Safety
/// - The preconditions of [`st_global_b32`] must hold if `condition` is true.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_global_b32_if(address: u64, x: u32, condition: bool) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("{{", ".reg .pred wanted;", "setp.ne.u32 wanted, {}, 0;",
            "@wanted st.global.b32 [{}], {};", "}}",
            in(reg32) condition as u32, in(reg64) address, in(reg32) x, options(nostack))
    }
}

/// `st.global.v2.b32`: stores two words.
///
/// # Safety
/// - `address` is a global address and a multiple of 8, and 8 bytes may be written there.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_global_v2_b32(address: u64, x: [u32; 2]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("st.global.v2.b32 [{}], {{{}, {}}};",
            in(reg64) address, in(reg32) x[0], in(reg32) x[1], options(nostack))
    }
}

/// `st.global.v2.b32` if `condition` is true. The instruction has a predicate, so the lanes of a warp stay
/// together.
///
/// # Safety
/// - The preconditions of [`st_global_v2_b32`] must hold if `condition` is true.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_global_v2_b32_if(address: u64, x: [u32; 2], condition: bool) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("{{", ".reg .pred wanted;", "setp.ne.u32 wanted, {}, 0;",
            "@wanted st.global.v2.b32 [{}], {{{}, {}}};", "}}",
            in(reg32) condition as u32, in(reg64) address, in(reg32) x[0], in(reg32) x[1], options(nostack))
    }
}

/// `st.global.v4.b32`: stores four words.
///
/// # Safety
/// - `address` is a global address and a multiple of 16, and 16 bytes may be written there.
#[inline(always)]
#[gpu_only]
pub unsafe fn st_global_v4_b32(address: u64, x: [u32; 4]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};",
            in(reg64) address, in(reg32) x[0], in(reg32) x[1], in(reg32) x[2], in(reg32) x[3],
            options(nostack))
    }
}

/// The host's version of [`parameter_address!`](crate::parameter_address), which panics.
#[doc(hidden)]
#[cfg(not(target_arch = "nvptx64"))]
pub fn no_parameter() -> u64 {
    panic!("parameters of an entry exist on the GPU only")
}

/// The generic address of the parameter of the entry that has this name. TMA reads tensor maps through this
/// address. Other code should not use it: it would load a value from memory that is otherwise a constant.
///
/// On the GPU, the calling crate needs `#![feature(asm_experimental_arch)]`, which `CudaBuilder` sets.
#[macro_export]
macro_rules! parameter_address {
    ($entry:ident) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            let address: u64;
            // SAFETY: the instruction only takes an address.
            unsafe {
                ::core::arch::asm!(
                    concat!(
                        "{{ .reg .b64 there; mov.b64 there, ", stringify!($entry),
                        "_param_0; cvta.param.u64 {}, there; }}"
                    ),
                    out(reg64) address,
                    options(pure, nomem, nostack)
                )
            }
            address
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $crate::memory::no_parameter()
        }
    }};
}
