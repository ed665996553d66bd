//! Device-side standard library for CUDA kernels in Rust, under Rust-CUDA's names, on rustc's own NVPTX backend.
//!
//! One function per PTX instruction, named like it. This is the only crate with `asm!`: what a kernel author calls is `tile`.
//!
//! Two rules keep the compiler from breaking convergence (both miscompilations were seen, see ARCHITECTURE.md):
//! - barriers, shuffles and votes are LLVM intrinsics, which are `convergent`; `asm!` never is;
//! - no `asm!` of a `.sync` instruction is `pure`, or LLVM would sink it into a branch.
//!
//! On the host every function compiles and panics when called, so that device crates can be checked, linted and tested there.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, stdarch_nvptx, link_llvm_intrinsics, abi_unadjusted, core_intrinsics)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

pub mod barrier;
pub mod cp_async;
pub mod ldmatrix;
pub mod math;
pub mod memory;
pub mod mma;
pub mod print;
pub mod thread;
pub mod warp;

pub use cuda_std_macros::{gpu_only, kernel};

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Who failed; the simulator and cuda-gdb know at which line.
    print::print(c"assertion failed in block %u, thread %u\n", [thread::block_idx_x(), thread::thread_idx_x()]);
    // SAFETY: `trap` ends the launch with an error; it has no preconditions.
    unsafe { core::arch::nvptx::trap() }
}
