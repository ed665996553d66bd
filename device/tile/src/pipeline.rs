//! Stages of shared memory, which are filled and read again and again.

mod byte_rows;
mod converted_ring;
mod converter;
pub(crate) mod mbarrier;
mod refilled;
pub(crate) mod ring;
mod specialize;
mod stage_converter;
mod stage_guard;
mod stream;
mod twins;
mod warpgroups;

pub use byte_rows::{ByteRow, ByteRows, FoundRows, FromRows};
pub use converted_ring::{ConvertedRing, ConvertedStages};
pub use converter::{Conversion, Converter};
pub use mbarrier::{Consumer, Consumers, MbarrierPipeline, Producer, StageConverter};
pub use refilled::{Boxes, Gathered, Refill, Refilled, Settle};
pub(crate) use refilled::{Published, StageToken};
pub use ring::{InFlight, Pipeline, Prologue, Ready, Ring, Unfilled};
pub use specialize::Specialized;
pub(crate) use stage_converter::STORED;
pub use stage_guard::StageGuard;
pub use stream::{OwnRing, PerWarp, Stream};
pub use twins::{TwinConsumer, TwinProducer, Twins};
pub use warpgroups::Phased;
