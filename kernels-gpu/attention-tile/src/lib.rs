//! What attention adds to typed tiles ([`tile`]): where keys, values and queries are in global memory.
//!
//! | noun | what it is | what it proves |
//! |---|---|---|
//! | [`CacheRows`] -> [`PageWalk`] | one head's keys, or values, of a sequence in a cache; a block's walk through them | pages exist, whatever the table says |
//! | [`CacheWalk`], [`Source`] | a warp's share of the same, keys and values together | the same |
//! | [`InPages`], [`PagedRow`] | the same through a tensor map | the same; boxes are the host's |
//! | [`CacheRow`] | the row that a slot names, to be filled | the slot, the row and the head exist |
//! | [`PackedRows`] | packed GQA: rows of the query heads that share a key head | rows and columns exist |
//!
//! Kernels are safe code; the `unsafe` of these is here, on `unsafe` traits and functions of `tile`.
#![no_std]
// A loop over `0..N` says which register or chunk it means; an iterator hides it.
#![allow(clippy::needless_range_loop)]

mod map;
mod packed_gqa;
mod per_head;
mod rows;
mod slot;
mod table;
mod walk;

pub use map::{InPages, PagedRow};
pub use packed_gqa::PackedRows;
pub use per_head::load_per_head;
pub use rows::{CacheRows, Down, Order, PageWalk, Up};
pub use slot::CacheRow;
pub use walk::{CacheWalk, PagedRows, PagedTiles, Source, Strided};
