//! What FerroFlash's kernels are, to both sides of a launch. Host and device compile this crate; nothing else is shared by them.
//!
//! - [`Kernel`]: threads, shared memory, parameters and grid of a kernel, from one type.
//! - [`FwdParams`]: what a forward kernel is told, with [`Tensor`], [`Window`] and [`TileOrder`].
//! - [`Fwd`], [`FwdOverlap`]: configurations. A configuration *is* a type.
//! - [`for_each_entry!`] and [`ENTRIES`]: the one table of compiled kernels.
//!
//! Sizes of tiles count 16x16 base tiles, sizes of tensors count elements, strides are bytes.
#![no_std]
#![forbid(unsafe_code)]

mod entries;
mod entry;
mod fwd;
mod order;
mod params;

pub use contract::{Bf16, DType, Element, F16, FastDiv, Kernel, Path, Scalar, Tensor, Vector as Lse};
pub use entries::ENTRIES;
pub use entry::{Entry, EntryInfo, SpillAllowance};
pub use fwd::{
    Causal, Forward, Full, Fwd, FwdOverlap, FwdSpecialised, Grid, Local, MaskKind, MaskMarker, Persistent, Schedule,
};
pub use order::{TileOrder, WorkTile};
pub use params::{FwdParams, Window};
