//! Attention whose sequence is spread over several GPUs.
//!
//! | function | what travels | for |
//! |---|---|---|
//! | [`Form::Ring`] | K and V, beside the computation | training and prefill of long sequences |
//! | [`Form::Gather`] | K and V, before it | few key heads |
//! | [`Form::Ulysses`] | Q, K, V and O | as many key heads as query heads |
//! | [`decode_attention`] | O and the LSE of each rank | decode on a spread KV cache |
//!
//! A rank is a [`Comm`]: an engine on a GPU, a stream, and a [`Transport`]. `Nccl` is the transport of real
//! GPUs, and `Threads` of tests without any. docs/several-gpus.md says when to use which.
#[cfg(doctest)]
#[doc = include_str!("../../docs/several-gpus.md")]
struct Document;

mod batches;
mod chunks;
mod comm;
mod decode;
mod form;
mod forward;
mod gather;
#[cfg(feature = "training")]
mod gradients;
#[cfg(feature = "nccl")]
mod nccl;
mod partials;
mod ring;
mod sequences;
mod shard;
mod spread;
#[cfg(feature = "sim")]
mod threads;
mod tiles;
mod transport;
mod travel;
mod ulysses;

pub use chunks::Chunks;
pub use comm::Comm;
pub use decode::{decode_attention, decode_workspace};
pub use form::Form;
#[cfg(feature = "nccl")]
pub use nccl::{Nccl, NcclId};
#[cfg(feature = "sim")]
pub use threads::Threads;
pub use transport::{Rows, Transfer, Transport};
