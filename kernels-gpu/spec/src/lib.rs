//! What FerroFlash's kernels are, to both sides of a launch. Host and device compile this crate; nothing else
//! is shared by them.
//!
//! - [`Kernel`]: threads, shared memory, parameters and grid of a kernel, from one type.
//! - [`FwdParams`]: what a forward kernel is told, with [`Tensor`], [`Window`] and [`TileOrder`].
//! - [`Fwd`], [`FwdOverlap`]: configurations. A configuration *is* a type.
//! - [`Decode`], [`DecodeParams`]: few queries on a long cache in pages, with [`DecodeOrder`].
//! - [`for_each_kernel!`] and [`KERNELS`]: the one table, family by family. Forward kernels are [`ENTRIES`];
//!   [`COMBINES`] finish what [`Split`] ones leave. [`PACKED`] are forward kernels for packed sequences,
//!   [`PAGED`] those over a cache; [`HOPPERS`], [`HOPPERS_PACKED`] and [`HOPPERS_PAGED`] are for an sm_90's
//!   own instructions.
//!
//! Sizes of tiles count 16x16 base tiles, sizes of tensors count elements, strides are bytes.
#![no_std]
#![forbid(unsafe_code)]

mod append;
mod cache;
mod combine;
mod decode;
mod forward;
mod hopper;
mod hopper_packed;
mod hopper_paged;
mod merge;
mod order;
mod packed;
mod paged;
mod paged_map;
mod split;
mod table;

pub use append::{APPEND_COLUMNS, APPENDS, Append, AppendCopy, AppendInfo, AppendParams};
pub use cache::{Cache, PerHead, Slots};
pub use combine::{COMBINES, Combine, CombineInfo, CombineParams};
pub use contract::{
    Bf16, Contract, Counters, DType, E4m3, Element, F16, F32, FastDiv, Integers, Kernel, Native, Partials,
    Path, RaggedMap, RowParts, RowValues, Scalar, Target, Tensor, TensorMap, Vector as Lse,
};
pub use decode::entries::{DECODE_COMBINES, DECODES, DecodeCombineInfo, DecodeInfo};
pub use decode::params::{DecodeOrder, DecodeParams, LEAST_KEYS, MAX_SEQUENCES, TALLY};
pub use decode::{Decode, DecodeCombine, PageKind, PageMarker, Rows, Tiles};
pub use forward::entries::{ENTRIES, PLANNED};
pub use forward::entry::{Entry, EntryInfo};
pub use forward::params::{FwdParams, Window};
pub use forward::{
    Causal, Forward, Full, Fwd, FwdOverlap, FwdSpecialised, FwdWide, Grid, Local, MaskKind, MaskMarker,
    Persistent, Schedule,
};
pub use hopper::{FwdHopper, FwdHopperWide, HOPPERS, HopperParams};
pub use hopper_packed::{HOPPERS_PACKED, HopperPacked, HopperPackedParams};
pub use hopper_paged::{HOPPERS_PAGED, HopperPaged, HopperPagedParams};
pub use merge::{MERGE_COLUMNS, MERGES, Merge, MergeInfo, MergeParams, MergeState};
pub use order::{OwnTiles, TileOrder, TileRounds, WorkTile};
pub use packed::{PACKED, Packed, PackedParams, Sequences};
pub use paged::{PAGED, Paged, PagedInfo, PagedParams};
pub use paged_map::{PageBoxes, PagedMap};
#[doc(hidden)]
pub use pastey;
pub use split::{HopperSplit, HopperSplitParams, Split, SplitParams};
pub use table::{KERNELS, family, is_lineage, kernels};
