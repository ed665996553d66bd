//! What attention adds to typed tiles ([`tile`]): the addresses of keys, values and queries in global memory.
//!
//! | type | what it is | what it proves |
//! |---|---|---|
//! | [`CacheRows`] -> [`PageWalk`] | keys or values of a sequence's head in a cache; a block's walk | pages exist |
//! | [`CacheWalk`], [`Source`] | a warp's walk through its share of keys and values | pages exist |
//! | [`InPages`], [`PagedRow`] | keys or values in pages, through a tensor map | pages exist; the host sets boxes |
//! | [`CacheRow`] | the row that a slot names, to be filled | the slot, the row and the head exist |
//! | [`PackedRows`] | packed GQA: rows of the query heads that share a key head | rows and columns exist |
//!
//! Kernels are safe code. The `unsafe` code that they need is here: it implements unsafe traits of `tile` and
//! calls its unsafe functions.
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
pub use rows::{CacheRows, PageWalk};
pub use slot::CacheRow;
pub use walk::{CacheWalk, PagedRows, PagedTiles, Source, Strided};
