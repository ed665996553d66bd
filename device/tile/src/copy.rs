//! Copies of tiles to shared memory, by threads (`cp.async`).

mod transport;
mod walk;

pub use transport::{CpAsync, GroupTransport, Transport};
pub use walk::{TileSource, TileWalk, Walk};
