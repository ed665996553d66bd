//! What a GPU kernel is to both sides of its launch. Host and device compile this crate; it knows nothing of
//! what a kernel computes.
//!
//! - [`Kernel`]: threads, shared memory, parameters and grid of a kernel, from one type.
//! - [`Contract`]: the same of a compiled kernel, by value, with its symbol and [`Target`].
//! - [`Tensor`], [`TensorMap`], [`RaggedMap`], [`Vector`], [`Partials`],
//!   [`Integers`], [`Counters`], [`Element`]: what kernels are told of their data.
//! - [`FastDiv`]: division by a number that only the host knows.
#![no_std]
#![forbid(unsafe_code)]

mod element;
mod fast_div;
mod kernel;
mod launch;
mod parts;
mod target;
mod tensor;
mod tensor_map;

pub use element::{Bf16, DType, E4m3, Element, F16, F32, Native, Path, Scalar};
pub use fast_div::FastDiv;
pub use kernel::Kernel;
pub use launch::{Contract, SpillAllowance};
pub use parts::RowParts;
pub use target::Target;
pub use tensor::{Counters, Integers, Partials, RowValues, Tensor, Vector};
pub use tensor_map::{RaggedMap, TensorMap};
