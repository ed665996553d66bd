//! Builds a Rust device crate to PTX with rustc's NVPTX backend, one module per entry.
//!
//! The interface follows Rust-CUDA's `cuda_builder`. It has no code generator: it uses rustc with sources of
//! `core` (a rustup toolchain with `rust-src`, or a distribution's). [`CudaBuilder`] compiles the crate,
//! splits the result into one self-contained module per kernel, and stamps each with its launch [`Contract`].
//!
//! With the feature `ptxas` (on by default), [`report`] assembles the modules and counts registers, spills
//! and instructions. [`gate`] turns breaches of the rules (a spill in a loop, a local depot, serialised
//! `wgmma`) into errors.

mod arch;
#[cfg(feature = "lzma")]
pub mod archive;
#[cfg(feature = "ptxas")]
mod breach;
mod builder;
mod cache;
mod cargo;
mod convergence;
#[cfg(feature = "ptxas")]
mod descriptors;
mod error;
#[cfg(feature = "ptxas")]
pub mod gate;
mod group;
pub mod lines;
#[cfg(feature = "lzma")]
pub mod lzma;
mod manifest;
pub mod module;
pub mod occupancy;
mod output;
mod progress;
#[cfg(feature = "ptxas")]
pub mod ptxas;
#[cfg(feature = "ptxas")]
pub mod report;
#[cfg(feature = "ptxas")]
pub mod sass;
mod scan;
pub mod stamp;
pub mod toolchain;

pub use arch::Arch;
pub use builder::CudaBuilder;
pub use cargo::DebugInfo;
pub use contract::{Contract, Kernel, SpillAllowance, Target};
pub use error::Error;
pub use output::{Module, Output};
