//! What FerroFlash's kernels are, to both sides of a launch. Host and device compile this crate; nothing else is shared by them.
//!
//! - [`Kernel`]: threads, shared memory, parameters and grid of a kernel, from one type.
//! - [`FwdParams`]: what a forward kernel is told, with [`Tensor`], [`Window`] and [`TileOrder`].
//! - [`Fwd`], [`FwdOverlap`]: configurations. A configuration *is* a type.
//! - [`for_each_entry!`] and [`ENTRIES`]: the one table of forward kernels. [`Combine`] and [`COMBINES`]: what finishes a [`Split`] one.
//!
//! Sizes of tiles count 16x16 base tiles, sizes of tensors count elements, strides are bytes.
#![no_std]
#![forbid(unsafe_code)]

mod combine;
mod entries;
mod entry;
mod fwd;
mod order;
mod params;

pub use combine::{COMBINES, Combine, CombineInfo};
pub use contract::{Bf16, DType, Element, F16, FastDiv, Kernel, Partials, Path, Scalar, Tensor, Vector as Lse};
pub use entries::ENTRIES;
pub use entry::{Entry, EntryInfo, KernelInfo, SpillAllowance, kernels};
pub use fwd::{
    Causal, Forward, Full, Fwd, FwdOverlap, FwdSpecialised, Grid, Local, MaskKind, MaskMarker, Persistent, Schedule,
    Split,
};
pub use order::{TileOrder, WorkTile};
pub use params::{CombineParams, FwdParams, SplitParams, Window};
