//! Typed tiles for GPU kernels: who may touch which memory, when, is a type. Nothing here knows what a kernel
//! computes.
//!
//! | noun | what it is | what it proves |
//! |---|---|---|
//! | [`Block`], [`Warp`] | the converged thread block, a converged warp | barriers and warp operations are reached by all |
//! | [`Crew`], [`Transport`] | who copies, and how copies travel | a place is filled in one way, by one crew |
//! | [`WarpRows`], [`Team`] | a warp's rows of a tile, and the tile of a stage that it takes | they exist, and are no other warp's |
//! | [`Smem`], [`Place`] | all dynamic shared memory, split once into places | its size is the launch contract's |
//! | [`GlobalRows`], [`GlobalVec`], [`Walk`] | rows in global memory, a walk over them tile by tile | base and stride are multiples of 16 bytes |
//! | [`GlobalInts`] | integers in global memory | those that are read exist |
//! | [`PartialRows`], [`RowSlices`], [`OwnChunk`] | f32 rows that several blocks contribute to; one row of each; a thread's chunk of all rows | the same; that no two threads write it |
//! | [`OwnPart`] | a thread's eight columns of all rows | no two threads have the same |
//! | [`SharedTile`], [`TileSlot`] | a tile that may be read, one that may be written | it lies in shared memory, swizzled |
//! | [`Unfilled`] -> [`InFlight`] -> tile | a place filled once | no read before its copy has landed behind a barrier |
//! | [`Ring`] -> [`Pipeline`] -> [`Ready`] | stages filled again and again | no read too early, no refill too early |
//! | [`PerWarp`] -> [`OwnRing`] -> [`Stream`] -> [`Scratch`] | stages that a warp refills at once, given back in the end | the same; that the place is the stream's own |
//! | [`Relay`] -> [`Producer`], [`Consumer`] | stages that one warp fills for the others | the same, by mbarriers |
//! | [`Relay`] by [`Tma`] -> [`Producer`], [`Consumer`] -> [`Kept`] | the same, filled by the copy engine and read by products | the same, by transactions |
//! | [`GlobalTiles`] | a tensor as the copy engine sees it | its boxes are the tile's panels |
//! | [`Warpgroup`] | four converged warps that compute, of a block that is gone | products are issued by all, and one after the other |
//! | [`Abt`], [`Ab`] | products that run while their warps do something else | nobody touches what is in flight |
//! | [`Outbox`] | a tile on its way out | nobody writes before the copy engine has read |
//! | [`Scratch`] -> [`Left`], [`LeftColumns`] | registers handed from warp to warp | no read before the barrier |
//! | [`LeftPlace`], [`RightPlace`] | operands for which registers have no room | a lane reads its own, or behind a barrier |
//! | [`Tally`] -> [`Tallied`], [`Sums`] | numbers that warps leave for each other, parts of a sum | the same |
//! | [`Spent`] | a tile's place whose contents nobody needs any more | nobody reads them |
//! | [`Acc`], [`AFrag`], [`Resident`], [`RowVec`] | register fragments of a warp | shapes and element types of a product agree |
//! | [`ColAcc`], [`ColFrag`], [`Right`], [`ColVec`] | the same for few columns | likewise |
//!
//! Every shape counts 16x16 base tiles, so that plain const generics suffice.
#![no_std]
// A loop over `0..N` says which register of a fragment it means; an iterator hides it.
#![allow(clippy::needless_range_loop)]

mod block;
mod columns;
mod crew;
mod eight;
mod element;
mod engine;
mod exchange;
mod fragment;
mod global;
pub mod layout;
mod left;
mod maps;
mod mma;
mod outbox;
mod own_part;
mod partial;
mod pipeline;
mod place;
mod product;
mod reader;
mod relay;
mod right;
mod roles;
mod row;
mod scalar;
mod scratch;
mod shared;
mod steps;
mod store;
mod stored;
mod stream;
mod sums;
mod tally;

pub use block::{Block, Smem, Warp};
pub use columns::{ColAcc, ColFrag, ColSum, ColVec, LoadAs, WordRows};
#[doc(hidden)]
pub use contract::Element;
pub use crew::{CpAsync, Crew, CrewTransport, Team, Transport, WarpRows};
pub use eight::{LoadEight, StoreEight};
pub use element::Mma;
pub use engine::{Boxes, Engine, Kept, Note, Noted, Tma};
pub use exchange::LeftColumns;
pub use fragment::{AFrag, Acc, Part, Resident, RowBounds};
pub use global::{GlobalInts, GlobalRows, GlobalVec, TileSource, TileWalk, Walk};
pub use left::{LeftOperand, LeftPlace};
pub use maps::{GlobalTiles, Map, MapOut, Panels, RowOfSequence};
pub use mma::{TensorCore, WarpgroupCore};
pub use outbox::Outbox;
pub use own_part::{OwnPart, load_value};
pub use partial::{OwnChunk, PartialRows, RowSlices};
pub use pipeline::{InFlight, Pipeline, Prologue, Ready, Ring, Unfilled};
pub use place::Place;
pub use product::{Ab, Abt, Product};
pub use relay::{Consumer, Consumers, Producer, Relay};
pub use right::{Right, RightPlace};
pub use roles::{TwoSided, Warpgroup};
pub use row::{RowSum, RowVec};
pub use scratch::{Left, Registers, Scratch, Theirs};
pub use shared::{SharedLayout, SharedTile, SharedTiles, TileSlot, TileSlots};
pub use steps::Steps;
pub use store::Spent;
pub use stored::Stored;
pub use stream::{OwnRing, PerWarp, Stream};
pub use sums::Sums;
pub use tally::{Tallied, Tally};

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
