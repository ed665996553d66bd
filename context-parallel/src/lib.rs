//! Attention whose sequence is spread over several GPUs.
//!
//! | function | what travels | for |
//! |---|---|---|
//! | [`ring_attention`], `ring_backward` | K and V, beside the computation | training and prefill |
//! | [`decode_attention`] | O and the LSE of each rank | decode on a spread KV cache |
//!
//! A rank is a [`Comm`]: an engine on a GPU, a stream, and a [`Transport`]. `Nccl` is the transport of real
//! GPUs, and `Threads` of tests without any. docs/several-gpus.md says when to use which.
mod chunks;
mod comm;
mod decode;
#[cfg(feature = "training")]
mod gradients;
#[cfg(feature = "nccl")]
mod nccl;
mod ring;
mod shard;
#[cfg(feature = "sim")]
mod threads;
mod tiles;
mod transport;

pub use chunks::Chunks;
pub use comm::Comm;
pub use decode::{decode_attention, decode_workspace};
#[cfg(feature = "training")]
pub use gradients::{ring_backward, ring_backward_workspace};
#[cfg(feature = "nccl")]
pub use nccl::{Nccl, NcclId};
pub use ring::{ring_attention, ring_workspace};
#[cfg(feature = "sim")]
pub use threads::Threads;
pub use transport::{Transfer, Transport};
