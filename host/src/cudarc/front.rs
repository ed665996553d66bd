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
    /// Whether a captured graph may contain some of the loaded kernels.
    captured: AtomicBool,
    pub(super) plans: Plans,
}

impl FlashAttention {
    /// Creates attention for slices and streams of `context`.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        context.bind_to_thread().map_err(refused("bind_to_thread"))?;
        let keeper = Arc::clone(context);
        // SAFETY: cudarc's context, which is current now, is destroyed when its last `Arc` is dropped.
        let driver = unsafe { RawDriver::current_of(Some(keeper))? };
        let (attention, context) = (ManuallyDrop::new(Attention::new(driver)), Arc::clone(context));
        let (captured, plans) = (AtomicBool::new(false), Plans::default());
        Ok(FlashAttention { attention, context, captured, plans })
    }

    /// Returns the underlying [`Attention`]. Programs need the engine for CUDA graphs, and for tensors
    /// outside of cudarc's slices.
    pub fn attention(&self) -> &Attention<RawDriver> {
        &self.attention
    }

    /// Checks that a stream, or a slice's stream, has the `Arc` of this context. Another context object of
    /// this device has an equal handle, but counts its own streams. cudarc decides by this count whether one
    /// stream waits for another.
    pub(super) fn is_here(&self, what: &'static str, stream: &CudaStream) -> Result<(), Error> {
        let theirs = stream.context();
        if Arc::ptr_eq(theirs, &self.context) {
            return Ok(());
        }
        let value = format_args!("of device {}'s context {:?}", theirs.ordinal(), theirs.cu_ctx());
        let right = "it must belong to the `Arc<CudaContext>` that FlashAttention::new got";
        Err(Error::invalid(what, value, right))
    }

    /// Returns whether a stream captures a graph. If the stream captures, this function records that a graph
    /// may contain kernels.
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
    /// - A [guard](super::memory::StreamGuards) holds every buffer that the request names for `stream`, until
    ///   this function returns.
    /// - The request's counters are zeros.
    pub(super) unsafe fn launch<R: crate::plan::Request>(
        &self,
        plan: &PlanOf<R>,
        request: &R,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        // cudarc reports a failed wait for another stream only here, not in the call that waits.
        self.context.check_err().map_err(refused("wait for other streams"))?;
        // SAFETY: the stream lives longer than this call, and belongs to this context. The slices are device
        // memory of this context, of their stated lengths, and planning has checked that the tensors lie
        // within them. cudarc frees them, or lends them to other work, after the last use that it has
        // recorded. The kernels stay loaded until `drop` has waited for all work; if a graph may contain
        // them, they stay loaded for ever.
        unsafe { self.attention.launch(plan, request, &RawStream::from_raw(stream.cu_stream().cast())) }
    }
}

impl Drop for FlashAttention {
    fn drop(&mut self) {
        // There are two cases in which kernels and context must stay loaded. A graph may launch its kernels
        // later. If the wait fails, kernels may still run: the driver refuses to wait while any stream of the
        // context captures.
        if *self.captured.get_mut() || self.context.synchronize().is_err() {
            return;
        }
        // SAFETY: dropped once, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.attention) };
    }
}

/// Returns a function that converts cudarc's error to an error of this crate.
pub(super) fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |e| Error::driver(call, Some(e.0 as u32), e)
}
