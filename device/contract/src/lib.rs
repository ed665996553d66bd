//! The launch contract between host and device. Both sides compile this crate. The crate does not depend on
//! the computation inside a kernel.
//!
//! - [`Kernel`]: one type states threads, shared memory, parameters and grid of a kernel.
//! - [`Contract`]: the contract of a compiled kernel as a value, with its symbol and [`Target`].
//! - [`Dependent`]: a kernel that begins before the kernel before it has ended.
//! - [`Tensor`], [`TensorMap`], [`RaggedMap`], [`Vector`], [`Partials`], [`Integers`], [`Counters`],
//!   [`Element`]: descriptions of data in a kernel's parameters.
//! - [`NoteWords`]: the note about a work tile in a kernel's shared memory.
//! - [`FastDiv`]: division by a divisor that only the host knows.
#![no_std]
#![forbid(unsafe_code)]

mod dependent;
mod element;
mod fast_div;
mod kernel;
mod launch;
mod note;
mod padding;
mod parts;
mod target;
mod tensor;
mod tensor_map;
mod tile_partials;

pub use dependent::Dependent;
pub use element::{Bf16, DType, E4m3, E4m3Scaled, Element, F16, F32, Int8, Native, Path, Scalar};
pub use fast_div::FastDiv;
pub use kernel::{Kernel, Start};
pub use launch::{Contract, SpillAllowance};
pub use note::{NoteWords, note_bytes};
pub use padding::Plain;
pub use parts::{PartPairs, RowParts};
pub use target::Target;
pub use tensor::{Counters, Integers, PaddedVector, Partials, RowValues, Tensor, TileSums, Vector};
pub use tensor_map::{RaggedMap, TensorMap};
pub use tile_partials::TilePartials;
