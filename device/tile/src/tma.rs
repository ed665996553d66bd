//! Copies of tiles by TMA: tensor maps, and tiles that consist of their boxes.

mod map;
mod tile;
mod transport;

pub use map::{MapKind, MatrixMap, Panels, RaggedRow, StoreMapKind, TmaTensor};
pub use tile::TmaTile;
pub use transport::{BroadcastTma, TileInfo, Tma, TmaTransport};
