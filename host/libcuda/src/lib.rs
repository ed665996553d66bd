//! The CUDA driver library, opened at first use.
//!
//! This crate does not link to the driver, so a program with this crate builds without CUDA and starts
//! without a driver. The crate has one function per driver function, with the driver function's name. Each
//! function looks up its address at its first call. Without a driver, all of them return
//! [`CUDA_ERROR_STUB_LIBRARY`], and the error of [`open`] gives the reason.
//!
//! With the feature `symbols`, these functions and all other driver functions of the crate `cust` 0.3.2 are
//! symbols for the linker. `cust` then links without libcuda. The build script of `cust` still searches for
//! libcuda: set `CUDA_LIBRARY_PATH` to the folder of this crate's sources, whose `lib64` contains an empty
//! archive.

mod error;
mod functions;
mod library;
#[cfg(feature = "symbols")]
mod symbols;

pub use error::{CudaError, check};
pub use functions::*;
pub use library::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STUB_LIBRARY, CUresult, NoDriver, open};
