//! Copies of tiles by TMA: tensor maps, and tiles that consist of their boxes.

mod map;
mod tile;
mod tile_transport;
mod transport;
mod valued;

pub use map::{MapKind, MatrixMap, Panels, RaggedRow, StoreMapKind, TmaTensor};
pub use tile::TmaTile;
pub use tile_transport::{Fills, TileTransport};
pub use transport::{BroadcastTma, ConvertedTma, TileInfo, Tma, TmaTransport};
pub use valued::{ValuedTensor, ValuedTile};
