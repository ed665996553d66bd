//! The CUDA driver library, opened at first use.
//!
//! This crate does not link to the driver, so a program with it builds without CUDA and starts without a
//! driver. Each function of the driver is a function here, with the same name. It looks up its address at the
//! first call. Without a driver, every function returns [`CUDA_ERROR_STUB_LIBRARY`], and [`open`] says what
//! is missing.
//!
//! With the feature `symbols`, the functions are also linker symbols, together with all other functions that
//! the crate `cust` 0.3.2 uses. `cust` then needs no libcuda either. Its build script still looks for one:
//! the folder `lib64` beside this crate's sources has an empty archive for it (`CUDA_LIBRARY_PATH`).

mod functions;
mod library;
#[cfg(feature = "symbols")]
mod symbols;

pub use functions::*;
pub use library::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STUB_LIBRARY, CudaError, NoDriver, check, open};
