//! Fused attention for NVIDIA GPUs, every kernel written in Rust.
//!
//! ```no_run
//! # fn main() -> Result<(), ferroflash::Error> {
//! use ferroflash::{Attention, DType, Forward, Mask, RawDriver, RawStream, TensorView};
//! # let (q, k, v, o, stream) = (0, 0, 0, 0, std::ptr::null_mut());
//!
//! // SAFETY: the context that is current on this thread outlives the driver.
//! let attention = Attention::new(unsafe { RawDriver::current()? });
//! let shape = [2, 1024, 16, 128]; // batch, seqlen, heads, head_dim
//! let view = |address| TensorView::bshd(address, 2 * 1024 * 16 * 128, DType::F16, shape);
//! let forward = Forward::new(view(q), view(k), view(v), view(o)).mask(Mask::Causal);
//! let plan = attention.plan(&forward)?; // checks everything, once
//! // SAFETY: the addresses are device buffers of that size, and the work of this stream, which lives as
//! // long as they, is all that uses them.
//! unsafe { attention.launch(&plan, &forward, &RawStream::from_raw(stream))? };
//! # Ok(())
//! # }
//! ```
//!
//! - [`TensorView`], [`LseView`]: tensors in the caller's memory. Layouts are strides. [`AlibiSlopes`],
//!   [`Sinks`]: a number for each head. [`Workspace`], [`Counters`]: what launches use beside them.
//! - [`KvCache`], [`KvPages`]: keys and values in pages; [`Index`], [`Slots`]: integers that only the device
//!   knows.
//! - [`Decode`]: queries on a cache, few a sequence or many; [`plan_decode`].
//! - [`Forward`]: what is asked for; [`Problem`]: the same without its tensors; [`Mask`].
//! - [`Packed`]: sequences of any lengths, one behind the other.
//! - `lineage` (feature `lineage`): configurations by the names that they had before this project.
//! - [`Append`]: new keys and values on their way into a cache. [`Merge`]: attention over some keys and over
//!   others becomes attention over all.
//! - [`plan()`], [`supports`]: pure functions of a problem and a device's [`Capabilities`].
//! - [`Tuning`]: what `ferroflash sweep` measured; comes before the planner's own table where
//!   [`Attention::with_tuning`] is given it. Reading its files is the feature `tuning`.
//! - [`Attention`]: plans and launches on one device; [`Prepared`]: a kernel picked by type.
//! - [`Driver`]: [`RawDriver`] (somebody else's context and streams), `CustDriver` (feature `cust`),
//!   `SimDriver` (feature `sim`).
//! - `cudarc` (feature `cudarc`): safe functions on cudarc's slices and streams, with candle-flash-attn's
//!   names, packed sequences and caches too.
//! - [`Error`]: everything that is refused, in words. Nothing falls back silently.
//!
//! By default this builds on stable Rust without CUDA and without a device compiler: the kernels are inside.
//! The feature `cust` needs what `cust` needs, a CUDA installation, or `CUDA_LIBRARY_PATH` naming a folder
//! whose `lib64` holds any `libcuda`; the program then runs on machines without CUDA all the same.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attention;
mod capabilities;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod driver;
mod error;
mod image;
pub mod kernels;
mod launch;
#[cfg(feature = "lineage")]
pub mod lineage;
mod lower;
mod lzma;
mod maps;
pub mod plan;
mod prepared;
mod problem;
pub mod ptx;
pub mod request;
mod schedule;
mod select;
mod tma;
pub mod tuning;
mod validate;

pub use attention::Attention;
pub use capabilities::Capabilities;
pub use error::{Cause, Error};
pub use plan::{Launch, Plan, plan};
#[doc(hidden)]
pub use spec;
pub use spec::DType;

pub(crate) use driver::{Boxes, Driver, MapKind};
#[cfg(feature = "cudarc")]
pub(crate) use driver::{RawDriver, RawStream};
pub(crate) use kernels::{AttnInfo, Contract, KERNELS, MaskKind};
pub(crate) use plan::{CacheShape, Problem};
pub(crate) use tuning::Tuning;
