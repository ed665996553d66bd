//! Extends typed tiles ([`tile`]) for attention: keys, values and queries in global memory.
//!
//! | noun | meaning | its type proves |
//! |---|---|---|
//! | [`CacheRows`] -> [`PageWalk`] | one head's keys, or values, of a sequence in a cache; a block's walk through them | every page that is read exists, even if the table is invalid |
//! | [`ListedRows`] -> [`ListedWalk`], [`ListedTile`] | the keys that a list of slots names; a block's walk through them, or a tile of them | every row that is read exists, even if slots are invalid |
//! | [`FoundPages`], [`RowsOfStage`] | rows that a warp has looked up, in pages or by slots, which threads copy | every row that is read exists, even if table or slots are invalid |
//! | [`BlockList`], [`ListWalk`] | a work tile's list of key blocks; a walk through them | every block has keys, even if the list is invalid |
//! | [`CacheWalk`], [`Source`] | a warp's share of a sequence, keys and values together | every page that is read exists |
//! | [`ScaleWalk`], [`ScalesDown`] | a warp's and a block's walk through the scales of a cache's rows | every scale that is read exists |
//! | [`InPages`], [`PagedRow`] | keys or values through a tensor map | every page that is read exists; boxes have the host's size |
//! | [`octet`], [`scaled_row`] | eight rows of one page, or one row and its scale | the page and its rows exist, even if the table is invalid |
//! | [`CacheRow`] | the row that a slot names, for writing | the slot, the row and the head exist |
//! | [`Position`] | a token's position, and its cosines and sines for rotary embedding | every row that is read exists, even if the position is invalid |
//! | [`load_bits`], [`load_bias`] | numbers of a query and a key | rows and numbers that do not exist are the last ones |
//! | [`store_bias`] | the gradient of a bias | rows and numbers that do not exist are not written |
//! | [`head_of`], [`load_per_head`] | a head, and a number that each head has | only a kernel names heads |
//! | [`PackedRows`] | packed GQA: rows of the query heads that share a key head | rows and columns exist |
//!
//! Kernels are safe code. All `unsafe` code of these types lies in this crate, which calls the `unsafe`
//! traits and functions of `tile`.
#![no_std]
// A loop over `0..N` shows which register or chunk an index names; an iterator would hide this.
#![allow(clippy::needless_range_loop)]

mod angles;
mod block_list;
mod found_rows;
mod listed;
mod map;
mod of_pairs;
mod packed_gqa;
mod per_head;
mod rows;
mod scales;
mod slot;
mod table;
mod walk;

pub use angles::Position;
pub use block_list::{BlockList, ListWalk, Next};
pub use found_rows::{FoundPages, RowsOfStage};
pub use listed::{FoundSlots, ListedRows, ListedTile, ListedWalk};
pub use map::{FoundRow, InFoundPages, InPages, InWidePages, OutsidePages, Page, PageBox, PagedRow};
pub use of_pairs::{load_bias, load_bits, store_bias};
pub use packed_gqa::PackedRows;
pub use per_head::{LoadScales, head_of, load_per_head};
pub use rows::{CacheRows, Down, Order, PageWalk, Up};
pub use scales::{HeadScales, ScaleWalk, ScalesDown};
pub use slot::CacheRow;
pub use table::{OCTET, octet, scaled_row};
pub use walk::{CacheWalk, PagedRows, PagedTiles, Source, Strided};
