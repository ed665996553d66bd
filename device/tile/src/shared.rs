//! Shared memory: places, and tiles in them.

mod byte_stage;
pub(crate) mod convert;
mod convert_rows;
mod place;
pub(crate) mod reader;
mod scales;
mod tile;

pub use byte_stage::{ByteStage, ByteStageSlot, KeyScales, StageImage, StageImages};
pub use convert::{ConvertTo, Stores};
pub use convert_rows::ConvertRows;
pub use place::Place;
pub use scales::{CopiedScales, RowScales, RowScalesSlot, Scaled, StageScales};
pub use tile::{SharedLayout, SharedTile, SharedTiles, TileSlot, TileSlots};
