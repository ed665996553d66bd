//! Shared memory: places, and tiles in them.

mod place;
pub(crate) mod reader;
mod tile;

pub use place::Place;
pub use tile::{SharedLayout, SharedTile, SharedTiles, TileSlot, TileSlots};
