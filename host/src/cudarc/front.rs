//! [`FlashAttention`]: kernels and plans of one context.
use super::plans::Plans;
use crate::plan::PlanOf;
use crate::{Attention, Error, RawDriver, RawStream};
use ::cudarc::driver::sys::CUstreamCaptureStatus;
use ::cudarc::driver::{CudaContext, CudaStream, DriverError};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Attention on one of `cudarc`'s contexts. Each kernel loads at its first use and stays loaded.
pub struct FlashAttention {
    pub(super) attention: ManuallyDrop<Attention<RawDriver>>,
    context: Arc<CudaContext>,
    /// Whether a graph may contain some of the kernels.
    captured: AtomicBool,
    pub(super) plans: Plans,
}

impl FlashAttention {
    /// Creates attention for slices and streams of `context`.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver fails.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        context.bind_to_thread().map_err(refused("bind_to_thread"))?;
        let keeper = Arc::clone(context);
        // SAFETY: cudarc's context, which is current now, is destroyed when its last `Arc` is dropped.
        let driver = unsafe { RawDriver::current_of(Some(keeper))? };
        let (attention, context) = (ManuallyDrop::new(Attention::new(driver)), Arc::clone(context));
        let (captured, plans) = (AtomicBool::new(false), Plans::default());
        Ok(FlashAttention { attention, context, captured, plans })
    }

    /// The underlying [`Attention`]: for CUDA graphs, and for tensors outside of cudarc's slices.
    pub fn attention(&self) -> &Attention<RawDriver> {
        &self.attention
    }

    /// Checks that a stream, or that of a slice, is of the same `Arc`: another one of the same device has the
    /// same handle, but counts its own streams, and by these cudarc decides whether one waits for another.
    pub(super) fn is_here(&self, what: &'static str, stream: &CudaStream) -> Result<(), Error> {
        let theirs = stream.context();
        if Arc::ptr_eq(theirs, &self.context) {
            return Ok(());
        }
        let value = format_args!("of device {}'s context {:?}", theirs.ordinal(), theirs.cu_ctx());
        let right = "it must be of the same `Arc<CudaContext>` that FlashAttention::new was given";
        Err(Error::invalid(what, value, right))
    }

    /// Whether a stream captures a graph; that kernels may then be part of one is remembered.
    pub(super) fn is_capturing(&self, stream: &CudaStream) -> Result<bool, Error> {
        let status = stream.capture_status().map_err(refused("cuStreamIsCapturing"))?;
        let capturing = status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if capturing {
            self.captured.store(true, Ordering::Relaxed);
        }
        Ok(capturing)
    }

    /// Enqueues a plan.
    ///
    /// # Safety
    /// - Every buffer that the request names was [taken](super::memory::StreamGuards) for `stream`. It stays
    ///   taken until this returns.
    /// - Its counters are zeros.
    pub(super) unsafe fn launch<R: crate::plan::Request>(
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
pub(super) fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |e| Error::driver(call, Some(e.0 as u32), e)
}
