//! Shared memory: places, and tiles in them.

pub(crate) mod convert;
mod place;
pub(crate) mod reader;
mod scales;
mod tile;

pub use convert::{ConvertTo, Stores};
pub use place::Place;
pub use scales::{RowScales, RowScalesSlot, Scaled, StageScales};
pub use tile::{SharedLayout, SharedTile, SharedTiles, TileSlot, TileSlots};
