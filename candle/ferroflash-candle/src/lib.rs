//! FerroFlash for candle: candle-flash-attn's functions with their names and argument order, and a paged KV
//! cache, on kernels written in Rust.
//!
//! ```no_run
//! # fn main() -> candle::Result<()> {
//! use candle::{DType, Device, Tensor};
//! let device = Device::new_cuda(0)?;
//! // (batch, sequence, heads, head_dim): 8 query heads on 2 key heads.
//! let q = Tensor::randn(0f32, 1., (1, 1000, 8, 64), &device)?.to_dtype(DType::F16)?;
//! let kv = Tensor::randn(0f32, 1., (1, 1000, 2, 64), &device)?.to_dtype(DType::F16)?;
//! let o = ferroflash_candle::flash_attn(&q, &kv, &kv, 0.125, true)?;
//! # Ok(())
//! # }
//! ```
//!
//! A model's layer holds a [`KvCache`] to generate text. [`KvCache::append`] writes a step's keys and values
//! into pages. [`KvCache::attend`] reads them, for sequences of any lengths in one batch. A layer with MLA
//! holds a [`LatentCache`].
//!
//! Everything runs on the stream of candle's device and never waits for it. After a first call, in which the
//! driver compiles kernels, you can capture a CUDA graph. Tensors may have any strides that are multiples of
//! 8 elements; the last stride is 1.
#![forbid(unsafe_code)]
mod append;
mod attend;
mod cache;
mod dense;
mod errors;
mod extras;
mod here;
mod inputs;
mod latent;
mod merge;
mod paged;
mod pages;
mod parts;
mod ranges;
mod rotary;
mod shared;
mod step;
mod variants;
mod varlen;

pub use append::{CacheScales, append, append_latent, append_latent_rotary, append_rotary};
pub use attend::Attend;
pub use cache::KvCache;
pub use dense::*;
pub use ferroflash::request::RotaryStyle;
pub use latent::LatentCache;
pub use merge::merge;
pub use paged::{PagedKv, SharedPages};
pub use pages::{PagePool, Sequence};
pub use rotary::RotaryTable;
pub use step::Step;
pub use variants::*;
pub use varlen::*;
