//! Typed tiles for GPU kernels: who may touch which memory, when, is a type. Nothing here knows what a kernel computes.
//!
//! | noun | what it is | what it proves |
//! |---|---|---|
//! | [`Block`], [`Warp`] | the converged thread block, a converged warp | barriers and warp operations are reached by all |
//! | [`Smem`] | all dynamic shared memory, split once | its size is the launch contract's |
//! | [`GlobalRows`], [`GlobalVec`], [`Walk`] | rows in global memory, a walk over them tile by tile | base and stride are multiples of 16 bytes |
//! | [`PartialRows`] | f32 rows that several blocks contribute to | the same |
//! | [`SharedTile`], [`TileSlot`] | a tile that may be read, one that may be written | it lies in shared memory, swizzled |
//! | [`Unfilled`] -> [`InFlight`] -> tile | a place filled once | no read before its copy has landed behind a barrier |
//! | [`Ring`] -> [`Pipeline`] -> [`Ready`], [`Vacant`] | stages filled again and again | no read too early, no refill too early |
//! | [`Relay`] -> [`Role`]: [`Producer`], [`Consumer`] -> [`Lent`] | stages that one warp fills for the others | the same, by mbarriers |
//! | [`Scratch`] -> [`Left`] | registers handed from warp to warp | no read before the barrier |
//! | [`Acc`], [`AFrag`], [`Resident`], [`RowVec`] | register fragments of a warp | shapes and element types of a product agree |
//!
//! Every shape counts 16x16 base tiles, so that plain const generics suffice.
#![no_std]
// A loop over `0..N` says which register of a fragment it means; an iterator hides it.
#![allow(clippy::needless_range_loop)]

mod block;
mod element;
mod fragment;
mod global;
pub mod layout;
mod mma;
mod partial;
mod pipeline;
mod row;
mod scalar;
mod scratch;
mod shared;
mod specialised;
mod store;

pub use block::{Block, Crew, Smem, Warp};
pub use element::Mma;
pub use fragment::{AFrag, Acc, Part, Resident};
pub use global::{GlobalRows, GlobalVec, Walk};
pub use partial::PartialRows;
pub use pipeline::{InFlight, Pipeline, Ready, Ring, Unfilled, Vacant};
pub use row::{RowSum, RowVec};
pub use scratch::{Left, Registers, Scratch};
pub use shared::{SharedLayout, SharedTile, SharedTiles, TileSlot, TileSlots};
pub use specialised::{Consumer, Lent, Producer, ProducerCrew, Relay, Role};
