//! Global memory: rows of tensors, values per row, integers, and partial results in f32.

mod block_scale;
mod byte_image;
mod dot;
mod eight;
mod fp8_image;
mod own_part;
mod partial;
mod quantise;
mod rows;
mod sums;
mod tile_partials;

pub use block_scale::BlockScale;
pub use byte_image::ColumnMeans;
pub use eight::{LoadEight, StoreEight, pack_eight, unpack_eight};
pub use fp8_image::{Fp8Scale, SHARES, largest_of_share, rows_at_once};
pub use own_part::{OwnPart, load_value};
pub use partial::{OwnChunk, PartialRows, RowSlices};
pub use quantise::RowQuantiser;
pub use rows::{FillInts, GlobalInts, GlobalRows, GlobalVec};
pub use sums::{GlobalSums, SumTile};
pub use tile_partials::GlobalPartials;
