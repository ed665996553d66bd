//! Attention on `cudarc`'s slices and streams, in safe Rust (feature `cudarc`).
//!
//! [`FlashAttention::flash_attn`], [`FlashAttention::flash_attn_varlen`] and their siblings have the names
//! and the order of arguments of candle-flash-attn, so that code that has slices rather than tensors moves
//! without being rewritten. [`FlashAttention::attend`] and its siblings take [`Inputs`]: these
//! say everything that this crate can be asked. [`FlashAttention::append`] puts new keys and values into a cache,
//! [`FlashAttention::merge`] makes attention over all keys of attention over some and over others.
//!
//! ```no_run
//! use ferroflash::cudarc::{FlashAttention, Inputs, Room, Tensor};
//! use ferroflash::request::Mask;
//! use cudarc::driver::CudaContext;
//! use half::f16;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let stream = context.default_stream();
//! let attention = FlashAttention::new(&context)?;
//! // 8 query heads on 2 key heads.
//! let q = stream.clone_htod(&vec![f16::ONE; 1000 * 8 * 64])?;
//! let kv = stream.clone_htod(&vec![f16::ONE; 1000 * 2 * 64])?;
//! let (q, kv) = (Tensor::new(&q, [1, 1000, 8, 64]), Tensor::new(&kv, [1, 1000, 2, 64]));
//! let o = attention.flash_attn(&stream, q, kv, kv, 0.125, true)?; // a CudaSlice<f16> of q's shape
//! // The same with capped scores, and the log-sum-exp of each row.
//! let inputs = Inputs::dense(q, kv, kv).mask(Mask::Causal).softcap(30.0);
//! let mut room = Room::new(); // is kept from call to call
//! let (o, lse) = attention.attend_with_lse(&stream, &inputs, &mut room)?;
//! # Ok(())
//! # }
//! ```
//!
//! A step of a server: new keys and values go to their slots, and a query of each of 4 sequences reads its
//! keys, up to 512 pages of 16. Lengths, slots and page numbers stay on the device.
//!
//! ```no_run
//! use ferroflash::cudarc::{Cache, FlashAttention, Pages, PagesMut, Room, Tensor};
//! # use cudarc::driver::{CudaSlice, CudaStream};
//! # use half::bf16;
//! # use std::sync::Arc;
//! # fn step(
//! #     attention: &FlashAttention, stream: &Arc<CudaStream>, room: &mut Room, q: CudaSlice<bf16>,
//! #     kv: CudaSlice<bf16>, mut keys: CudaSlice<bf16>, mut values: CudaSlice<bf16>,
//! #     slots: CudaSlice<i64>, table: CudaSlice<u32>, lengths: CudaSlice<u32>,
//! # ) -> Result<CudaSlice<bf16>, ferroflash::Error> {
//! let shape = [1000, 16, 8, 128]; // pages, keys of a page, key heads, head dim
//! let new = Tensor::new(&kv, [1, 4, 8, 128]);
//! attention.append(stream, new, new, PagesMut::new(&mut keys, &mut values, shape), &slots)?;
//! let cache = Cache::paged(Pages::new(&keys, &values, shape), &table, 512, &lengths);
//! let q = Tensor::new(&q, [4, 1, 32, 128]);
//! // `room`, a `Room` that is kept from step to step: the first one makes it as large as it must be.
//! attention.flash_attn_with_kvcache(stream, q, cache, 128f32.powf(-0.5), true, room)
//! # }
//! ```
//!
//! # What cudarc does not keep track of
//! - *Graphs.* A `CudaGraph` keeps nothing of what its launches use, and launching it is safe in cudarc. What
//!   is ours stays once it was captured: kernels and a [`Room`]'s memory are never freed then. Slices are
//!   yours: keep those of captured launches as long as the graph, and launch it where the captured functions
//!   might have been called, in the order of the same stream. A room must be large enough before.
//! - *Readers on several streams.* A slice remembers its last reader alone. Where two streams read one slice
//!   and it is then written or freed, cudarc waits for the second of them; let the second stream wait for the
//!   first (`CudaStream::join`) before it is. This holds for all work in safe cudarc, its own copies too.
mod append;
mod attention;
mod cache;
mod candle;
mod memory;
mod merge;
mod plans;
mod room;
mod tensor;

pub use attention::Inputs;
pub use cache::{Cache, Pages, PagesMut, Scale};
pub use memory::{Element, Integers, Memory, MemoryMut, Number, PerHead, SlotNumber, unsigned};
pub use merge::State;
pub use room::Room;
pub use tensor::{Tensor, TensorMut};

use crate::plan::PlanOf;
use crate::{Attention, Error, RawDriver, RawStream};
use ::cudarc::driver::sys::CUstreamCaptureStatus;
use ::cudarc::driver::{CudaContext, CudaStream, DriverError};
use plans::Plans;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod sealed {
    pub trait Sealed {}
}

/// Attention on one of `cudarc`'s contexts. Kernels are loaded at their first use, and kept.
pub struct FlashAttention {
    attention: ManuallyDrop<Attention<RawDriver>>,
    context: Arc<CudaContext>,
    /// Whether a graph may have some of the kernels.
    captured: AtomicBool,
    plans: Plans,
}

impl FlashAttention {
    /// For slices and streams of `context`.
    ///
    /// # Errors
    /// [`Error::Driver`] where the driver refuses.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        context.bind_to_thread().map_err(refused("bind_to_thread"))?;
        let keeper = Arc::clone(context);
        // SAFETY: cudarc's context, which is current now, is destroyed when its last `Arc` is dropped.
        let driver = unsafe { RawDriver::current_of(Some(keeper))? };
        let (attention, context) = (ManuallyDrop::new(Attention::new(driver)), Arc::clone(context));
        let (captured, plans) = (AtomicBool::new(false), Plans::default());
        Ok(FlashAttention { attention, context, captured, plans })
    }

    /// What plans and launches: for CUDA graphs, and for tensors that are not in cudarc's slices.
    pub fn attention(&self) -> &Attention<RawDriver> {
        &self.attention
    }

    /// Checks that a stream, or that of a slice, is of the same `Arc`: another one of the same device has the
    /// same handle, but counts its own streams, and by these cudarc decides whether one waits for another.
    fn is_here(&self, what: &'static str, stream: &CudaStream) -> Result<(), Error> {
        let theirs = stream.context();
        if Arc::ptr_eq(theirs, &self.context) {
            return Ok(());
        }
        let value = format_args!("of device {}'s context {:?}", theirs.ordinal(), theirs.cu_ctx());
        let right = "it must be of the same `Arc<CudaContext>` that FlashAttention::new was given";
        Err(Error::invalid(what, value, right))
    }

    /// Whether a stream captures a graph; that kernels may then be part of one is remembered.
    fn is_capturing(&self, stream: &CudaStream) -> Result<bool, Error> {
        let status = stream.capture_status().map_err(refused("cuStreamIsCapturing"))?;
        let capturing = status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if capturing {
            self.captured.store(true, Ordering::Relaxed);
        }
        Ok(capturing)
    }

    /// Enqueues what was planned.
    ///
    /// # Safety
    /// - Every buffer that the request names was [taken](memory::Taken) for `stream`, and stays so until this
    ///   returns.
    /// - Its counters are zeros.
    unsafe fn launch<R: crate::plan::Request>(
        &self,
        plan: &PlanOf<R>,
        request: &R,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        // A wait for another stream that failed is told here alone, and by no call of ours.
        self.context.check_err().map_err(refused("wait for other streams"))?;
        // SAFETY: the stream lives as long as this call needs it, and is of this context. The slices are
        // device memory of this context, as long as they say; planning has checked that the tensors lie
        // within. cudarc frees them, and lends them to other work, behind the last use that it has recorded.
        // The kernels stay until `drop` has waited for them, and for ever where a graph has them.
        unsafe { self.attention.launch(plan, request, &RawStream::from_raw(stream.cu_stream().cast())) }
    }
}

impl Drop for FlashAttention {
    fn drop(&mut self) {
        // A graph may launch its kernels later. Where waiting fails they may run now: the driver refuses to
        // wait while any stream of the context captures. In both cases kernels and context stay loaded.
        if *self.captured.get_mut() || self.context.synchronize().is_err() {
            return;
        }
        // SAFETY: dropped once, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.attention) };
    }
}

/// `cudarc`'s error as one of this crate's.
fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |e| Error::driver(call, Some(e.0 as u32), e)
}
