//! Typed tiles for GPU kernels. The types determine which threads may access which memory, and when. The
//! crate does not depend on the computation of a kernel.
//!
//! A kernel uses the modules in the order of this table:
//!
//! | module | contains | proves |
//! |---|---|---|
//! | the root | [`Block`], [`Warp`], [`Smem`]: the converged thread block, a converged warp, all shared memory | all threads reach a barrier, all lanes a warp operation; shared memory has the launch contract's size and is split once |
//! | [`group`] | [`Capability`](group::Capability), [`ThreadGroup`](group::ThreadGroup), [`Warpgroup`](group::Warpgroup), rows of a warp | only a kernel has a capability; no two warps have the same rows |
//! | [`global`] | rows, values and integers in global memory | addresses are aligned and in bounds |
//! | [`shared`] | [`Place`](shared::Place), [`SharedTile`](shared::SharedTile), tiles to be written | a tile lies in shared memory, swizzled |
//! | [`copy`](mod@copy) | `cp.async`: which thread copies which chunk | a place is filled by one thread group in one way |
//! | [`tma`] | tensor maps, tiles in TMA's boxes | the boxes are the tile's, and the byte count is the tile's |
//! | [`pipeline`] | [`Ring`](pipeline::Ring), [`Stream`](pipeline::Stream), [`MbarrierPipeline`](pipeline::MbarrierPipeline): stages | no stage is read before its copy has landed, none is refilled while it is read |
//! | [`mma`] | fragments and products (`mma.sync`) | shapes and element types agree |
//! | [`mod@beside`] | one value per row of a tile | values and tile have the same rows |
//! | [`tickets`] | work tiles that blocks take from a counter | every launch ends, on any grid |
//! | [`turns`] | additions to global memory in a fixed order | no thread adds before its turn |
//! | [`wgmma`] | asynchronous products of a warpgroup | nothing in flight can be accessed |
//! | [`exchange`] | registers and numbers passed between warps | no word is read before the barrier |
//! | [`epilogue`] | stores through shared memory | no place is overwritten while it is read |
//! | [`Ended`] | programmatic dependent launch | no partial result is read before the kernel that left it has ended |
//! | [`layout`] | the swizzle, as `const fn` | free of bank conflicts (tests) |
//!
//! Every shape counts 16x16 base tiles, so plain const generics suffice.
#![no_std]
// A loop over `0..N` shows which register of a fragment an index names; an iterator would hide this.
#![allow(clippy::needless_range_loop)]

pub mod beside;
mod block;
pub mod copy;
mod dependent;
pub mod epilogue;
pub mod exchange;
pub mod global;
pub mod group;
pub mod layout;
pub mod mma;
pub mod pipeline;
pub mod shared;
mod steps;
pub mod tickets;
pub mod tma;
pub mod turns;
pub mod wgmma;

pub use block::{Block, Dealt, Smem, Warp};
#[doc(hidden)]
pub use contract::Element;
pub use dependent::Ended;
pub use steps::Steps;

/// A doc test that compiles the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
