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
//! [`flash_attn`] and its windowed, varlen and ALiBi siblings have a gradient: `loss.backward()` runs
//! FerroFlash's backward kernels, with the feature `training`. On the CPU, these functions compute plain
//! attention in f32, and its gradient.
//!
//! | feature | adds |
//! |---|---|
//! | `cuda` (default) | GPUs, and all functions but those with a gradient |
//! | `training` | the backward kernels |
//!
//! Everything runs on the stream of candle's device and never waits for it. After a first call, in which the
//! driver compiles kernels, you can capture a CUDA graph. Tensors may have any strides that are multiples of
//! 8 elements; the last stride is 1.
#![forbid(unsafe_code)]
mod attend;
mod errors;
mod functions;
#[cfg(feature = "cuda")]
mod gpu;
mod operation;
mod plain;
mod starts;

pub use attend::Attend;
pub use ferroflash::request::{RotaryStyle, RowOutputs};
pub use functions::*;
#[cfg(feature = "cuda")]
pub use gpu::*;
pub use operation::FlashAttn;
