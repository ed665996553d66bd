//! Builds a Rust device crate to PTX with rustc's NVPTX backend, one module per entry.
//!
//! The interface follows `cuda_builder` of Rust-CUDA. This crate has no code generator: it runs rustc with
//! the sources of `core` (from rustup's `rust-src`, or from a distribution). [`CudaBuilder`] compiles the
//! crate, splits the result into one self-contained module per kernel, and writes a launch [`Contract`] into
//! each module.
//!
//! With the feature `ptxas` (on by default), [`report`] assembles the modules and counts registers, spills
//! and instructions. [`gate`] then returns an error for each kernel that spills in a loop, has a local depot,
//! or has serialised `wgmma`.

mod alone;
mod arch;
#[cfg(feature = "archive")]
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
mod manifest;
#[cfg(feature = "ptxas")]
mod merged;
pub mod module;
pub mod occupancy;
mod outer;
mod output;
mod progress;
#[cfg(feature = "ptxas")]
pub mod ptxas;
#[cfg(feature = "ptxas")]
mod queued;
#[cfg(feature = "ptxas")]
pub mod report;
#[cfg(feature = "ptxas")]
pub mod sass;
mod scan;
mod site;
#[cfg(feature = "archive")]
pub mod sources;
pub mod stamp;
pub mod toolchain;
mod workplace;

pub use arch::Arch;
pub use builder::CudaBuilder;
pub use cargo::DebugInfo;
pub use contract::{Contract, Kernel, SpillAllowance, Target};
pub use error::Error;
pub use output::{Module, Output};
