//! Stages of shared memory, which are filled and read again and again.

pub(crate) mod mbarrier;
pub(crate) mod ring;
mod specialize;
mod stage_guard;
mod stream;

pub use mbarrier::{Consumer, Consumers, MbarrierPipeline, Producer};
pub use ring::{InFlight, Pipeline, Prologue, Ready, Ring, Unfilled};
pub use specialize::Specialized;
pub use stage_guard::StageGuard;
pub use stream::{OwnRing, PerWarp, Stream};
