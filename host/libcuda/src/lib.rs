//! The CUDA driver library, opened at first use.
//!
//! Nothing here links to it, so a program with this crate builds without CUDA and starts without a driver.
//! Each function of the driver is a function here, under its own name, that looks its address up at its first
//! call. Without a driver all of them return [`CUDA_ERROR_STUB_LIBRARY`], and [`open`] says in words what is
//! missing.
//!
//! With the feature `symbols` the functions are also symbols for the linker, together with all others that
//! the crate `cust` 0.3.2 uses: `cust` then needs no libcuda either. Its build script still looks for one:
//! the folder `lib64` beside this crate's sources, with an empty archive, satisfies it (`CUDA_LIBRARY_PATH`).

mod error;
mod functions;
mod library;
#[cfg(feature = "symbols")]
mod symbols;

pub use error::{CudaError, check};
pub use functions::*;
pub use library::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STUB_LIBRARY, CUresult, NoDriver, open};
