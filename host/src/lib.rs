//! Fused attention for NVIDIA GPUs, every kernel written in Rust.
//!
//! ```no_run
//! # fn main() -> Result<(), ferroflash::Error> {
//! use ferroflash::driver::{RawDriver, RawStream};
//! use ferroflash::request::{AttentionRequest, Mask, TensorView};
//! use ferroflash::{Attention, DType};
//! # let (q, k, v, o, stream) = (0, 0, 0, 0, std::ptr::null_mut());
//!
//! // SAFETY: this thread's current context outlives the driver.
//! let attention = Attention::new(unsafe { RawDriver::current()? });
//! let shape = [2, 1024, 16, 128]; // batch, seqlen, heads, head_dim
//! let view = |address| TensorView::bshd(address, 2 * 1024 * 16 * 128, DType::F16, shape);
//! let request = AttentionRequest::dense(view(q), view(k), view(v), view(o)).mask(Mask::Causal);
//! let plan = attention.plan(&request)?; // validates the request, once
//! // SAFETY: the addresses are device buffers of this size. They live until the launch has run, and only
//! // work of this stream uses them.
//! unsafe { attention.launch(&plan, &request, &RawStream::from_raw(stream))? };
//! # Ok(())
//! # }
//! ```
//!
//! | item | purpose |
//! |---|---|
//! | [`request::AttentionRequest`] | one attention: on tensors, on varlen sequences, or on a KV cache |
//! | [`request::Append`], [`request::Merge`] | append to a KV cache; merge of partial states |
//! | [`request::TensorView`], [`request::LseView`] | tensors in the caller's memory, by strides |
//! | [`request::KvCache`], [`request::KvPages`] | KV caches, paged or dense |
//! | [`request::Rotary`], [`rotary`] | rotary embedding in an append; its tables |
//! | [`request::Index`], [`request::Slots`] | integers in device memory, which the host does not read |
//! | [`request::Scratch`] | workspace and counters of launches |
//! | [`plan()`], [`plan::supports`] | pure functions of a request and a device's [`Capabilities`] |
//! | [`Attention`] | plans and launches on one device |
//! | [`driver`] | drivers: raw handles, cust (feature `cust`), the simulator (feature `sim`) |
//! | `cudarc` (feature `cudarc`) | safe functions on cudarc's slices, with candle-flash-attn's names |
//! | [`kernels`] | the compiled kernels by name; [`kernels::Prepared`], a kernel picked by type |
//! | [`mod@variant`] | masks and scores of your own, in kernels that you compile |
//! | [`configuration`] | the types that kernels consist of |
//! | [`block_mask`] | lists of key blocks for variants, made on the device |
//! | [`tuning`] | measurements of `ferroflash sweep`, for [`Attention::with_tuning`] |
//! | `lineage` (feature `lineage`) | configurations by the predecessor's names |
//! | [`Error`] | the reason for each refusal, in words. Nothing falls back silently |
//!
//! The crate builds on stable Rust without CUDA: it carries the kernels as PTX. In a checkout in which a
//! source of the kernels has changed, the build compiles them, for which it needs a device compiler. The
//! feature `cust` needs a CUDA installation, or `CUDA_LIBRARY_PATH` with the name of a folder
//! whose `lib64` holds any `libcuda`. The program then also runs on machines without CUDA.
//!
//! The feature `kernels`, on by default, embeds FerroFlash's kernels. A program that launches only kernels of
//! its own ([`mod@variant`]) leaves it out.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attention;
pub mod block_mask;
mod capabilities;
pub mod configuration;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod driver;
mod error;
mod image;
pub mod kernels;
mod launch;
mod layout;
#[cfg(feature = "lineage")]
pub mod lineage;
mod lower;
mod maps;
mod passes;
mod place;
pub mod plan;
mod prepared;
mod problem;
pub mod ptx;
pub mod request;
pub mod rotary;
mod schedule;
mod select;
mod tma;
pub mod tuning;
mod validate;
pub mod variant;

pub use attention::Attention;
pub use capabilities::Capabilities;
pub use error::{Cause, Error};
pub use plan::{Launch, Plan, plan};
/// Everything that kernels and host share, for the tools of this workspace. It may change with every version.
#[doc(hidden)]
pub use spec;
pub use spec::DType;

pub(crate) use driver::{Driver, MapDescription, MapKind};
#[cfg(feature = "cudarc")]
pub(crate) use driver::{RawDriver, RawStream};
pub(crate) use plan::{CacheShape, Problem};
pub(crate) use spec::{AttnInfo, Contract, KERNELS, MaskKind};
pub(crate) use tuning::Tuning;
