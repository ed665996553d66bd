//! Fused attention for NVIDIA GPUs, every kernel written in Rust.
//!
//! ```no_run
//! # fn main() -> Result<(), ferroflash::Error> {
//! use ferroflash::{Attention, DType, Forward, Mask, RawDriver, RawStream, TensorView};
//! # let (q, k, v, o, stream) = (0, 0, 0, 0, std::ptr::null_mut());
//!
//! let attention = Attention::new(RawDriver::current()?); // the context that is current on this thread
//! let shape = [2, 1024, 16, 128]; // batch, seqlen, heads, head_dim
//! let view = |address| TensorView::bshd(address, 2 * 1024 * 16 * 128, DType::F16, shape);
//! let forward = Forward::new(view(q), view(k), view(v), view(o)).mask(Mask::Causal);
//! let plan = attention.plan(&forward)?; // checks everything, once
//! // SAFETY: the addresses are device buffers of that size, and this stream's own work is all that uses them.
//! unsafe { attention.launch(&plan, &forward, &RawStream::from_raw(stream))? };
//! # Ok(())
//! # }
//! ```
//!
//! - [`TensorView`], [`LseView`]: tensors in the caller's memory. Layouts are strides.
//! - [`Forward`]: what is asked for; [`Problem`]: the same without its tensors; [`Mask`].
//! - [`lineage`]: configurations by the names that they had before this project.
//! - [`plan()`], [`supports`]: pure functions of a problem and a device's [`Capabilities`].
//! - [`Tuning`]: what `ferroflash sweep` measured; comes before the planner's own table where [`Attention::with_tuning`] is given it. Reading
//!   its files is the feature `tuning`.
//! - [`Attention`]: plans and launches on one device; [`Prepared`]: a kernel picked by type.
//! - [`Driver`]: [`RawDriver`] (somebody else's context and streams), `CustDriver` (feature `cust`),
//!   `SimDriver` (feature `sim`).
//! - `cudarc` (feature `cudarc`): safe functions on cudarc's slices and streams, with candle-flash-attn's names.
//! - [`Error`]: everything that is refused, in words. Nothing falls back silently.
//!
//! With `default-features = false` this builds on stable Rust without CUDA and without a device compiler: the kernels are inside. The
//! feature `cust` needs what `cust` needs, a CUDA installation, or `CUDA_LIBRARY_PATH` naming a folder whose `lib64` holds any `libcuda`;
//! the program then runs on machines without CUDA all the same.

mod attention;
mod capabilities;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cudarc")]
pub mod cudarc;
mod driver;
mod error;
mod footprint;
mod forward;
mod image;
pub mod lineage;
mod plan;
mod prepared;
pub mod ptx;
#[cfg(feature = "reference")]
pub mod reference;
mod split;
mod table;
pub mod tuning;
mod validate;
mod view;

pub use attention::Attention;
pub use capabilities::Capabilities;
#[cfg(feature = "cust")]
pub use driver::{CustDriver, CustKernel};
pub use driver::{Driver, LaunchContract, RawBuffer, RawDriver, RawEvent, RawGraph, RawKernel, RawStream};
#[cfg(feature = "sim")]
pub use driver::{SimBuffer, SimDriver, SimKernel, SimStream};
pub use error::Error;
pub use forward::{Alignment, Forward, Mask, Problem};
pub use plan::{Plan, plan, plan_with, supports, workspace_bytes};
pub use prepared::Prepared;
pub use spec::{DType, ENTRIES, EntryInfo, FwdParams, Grid, MaskKind, Path, Schedule};
pub use tuning::{Tuned, Tuning};
pub use validate::{MAX_HEAD_DIM, MAX_ROW_BYTES, MAX_SEQLEN};
pub use view::{LseView, TensorView, Workspace};
