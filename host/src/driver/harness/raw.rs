//! [`Harness`] on raw handles.
use super::{Enqueue, Harness, fits, with_graph};
use crate::Error;
use crate::driver::cuda::{Context, driver, wait_for_default_stream};
use crate::driver::{RawDriver, RawStream};
use libcuda::{CUdeviceptr, CUevent};
use std::sync::Arc;
use std::time::Duration;

/// Device memory, freed when dropped.
#[derive(Debug)]
pub struct RawBuffer {
    context: Arc<Context>,
    address: CUdeviceptr,
    bytes: usize,
}

impl RawBuffer {
    /// Returns the size in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// An event in a stream.
#[derive(Debug)]
pub struct RawEvent {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for RawEvent {}
// SAFETY: any thread may use the driver's handles, and the driver locks its data.
unsafe impl Sync for RawEvent {}

impl Harness for RawDriver {
    type Buffer = RawBuffer;
    type Event = RawEvent;

    fn stream(&self) -> Result<RawStream, Error> {
        let _entered = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, destroyed when dropped.
        driver("cuStreamCreate", unsafe { libcuda::cuStreamCreate(&mut raw, libcuda::STREAM_NON_BLOCKING) })?;
        Ok(RawStream { raw, context: Some(Arc::clone(&self.context)) })
    }

    fn memory_in_use(&self) -> Result<Option<u64>, Error> {
        let _entered = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        driver("cuMemGetInfo", unsafe { libcuda::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(Some((total - free) as u64))
    }

    fn allocate(&self, bytes: usize) -> Result<RawBuffer, Error> {
        let _entered = self.context.enter()?;
        let mut address = 0;
        // SAFETY: the call writes one address, which `RawBuffer` frees when it is dropped. The driver refuses
        // 0 bytes.
        driver("cuMemAlloc", unsafe { libcuda::cuMemAlloc_v2(&mut address, bytes.max(1)) })?;
        Ok(RawBuffer { context: Arc::clone(&self.context), address, bytes })
    }

    fn address(&self, buffer: &RawBuffer) -> u64 {
        buffer.address
    }

    fn upload_at(&self, buffer: &mut RawBuffer, at: usize, data: &[u8]) -> Result<(), Error> {
        fits(buffer.bytes, at, data.len())?;
        let _entered = buffer.context.enter()?;
        let (to, from, bytes) = (buffer.address + at as u64, data.as_ptr().cast(), data.len());
        // SAFETY: both sides have this number of bytes.
        driver("cuMemcpyHtoD", unsafe { libcuda::cuMemcpyHtoD_v2(to, from, bytes) })?;
        wait_for_default_stream()
    }

    fn download_at(&self, buffer: &RawBuffer, at: usize, data: &mut [u8]) -> Result<(), Error> {
        fits(buffer.bytes, at, data.len())?;
        let _entered = buffer.context.enter()?;
        let (to, from, bytes) = (data.as_mut_ptr().cast(), buffer.address + at as u64, data.len());
        // SAFETY: both sides have this number of bytes.
        driver("cuMemcpyDtoH", unsafe { libcuda::cuMemcpyDtoH_v2(to, from, bytes) })
    }

    fn fill(&self, buffer: &mut RawBuffer, byte: u8) -> Result<(), Error> {
        let _entered = buffer.context.enter()?;
        // SAFETY: the buffer has this number of bytes.
        driver("cuMemsetD8", unsafe { libcuda::cuMemsetD8_v2(buffer.address, byte, buffer.bytes) })?;
        wait_for_default_stream()
    }

    unsafe fn with_graph(
        &self,
        stream: &RawStream,
        work: &mut Enqueue<'_>,
        then: &mut dyn FnMut(&mut Enqueue<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller makes the promises of `with_graph`.
        unsafe { with_graph(stream.raw, work, then) }
    }

    fn synchronize(&self, stream: &RawStream) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: a live stream.
        driver("cuStreamSynchronize", unsafe { libcuda::cuStreamSynchronize(stream.raw) })
    }

    fn record(&self, stream: &RawStream) -> Result<RawEvent, Error> {
        let _entered = self.context.enter()?;
        let mut event = RawEvent { context: Arc::clone(&self.context), raw: std::ptr::null_mut() };
        // SAFETY: writes one handle, destroyed when dropped.
        driver("cuEventCreate", unsafe { libcuda::cuEventCreate(&mut event.raw, 0) })?;
        // SAFETY: live handles.
        driver("cuEventRecord", unsafe { libcuda::cuEventRecord(event.raw, stream.raw) })?;
        Ok(event)
    }

    fn elapsed(&self, start: &RawEvent, end: &RawEvent) -> Result<Duration, Error> {
        let _entered = self.context.enter()?;
        // SAFETY: a live event.
        driver("cuEventSynchronize", unsafe { libcuda::cuEventSynchronize(end.raw) })?;
        let mut milliseconds = 0.0;
        // SAFETY: writes one number; live events.
        let code = unsafe { libcuda::cuEventElapsedTime(&mut milliseconds, start.raw, end.raw) };
        driver("cuEventElapsedTime", code)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl RawDriver {
    /// Sets every byte of `buffer`, in the order of `stream`. Does not wait for the end.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - `buffer` lives until the stream has run, and nothing else uses it until then.
    /// - `stream` belongs to this driver's context.
    pub unsafe fn enqueue_fill(&self, buffer: &RawBuffer, byte: u8, stream: &RawStream) -> Result<(), Error> {
        let _entered = self.enter()?;
        let (address, bytes) = (buffer.address, buffer.bytes);
        // SAFETY: the buffer has this number of bytes. The caller promises that it lives and that nothing
        // else uses it.
        driver("cuMemsetD8Async", unsafe { libcuda::cuMemsetD8Async(address, byte, bytes, stream.as_raw()) })
    }
}

// A drop cannot report errors. If a call fails here, the context no longer works, so this function ignores
// the error.
impl Drop for RawBuffer {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: allocated once, freed once.
        unsafe { libcuda::cuMemFree_v2(self.address) };
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: created once, destroyed once.
        unsafe { libcuda::cuEventDestroy_v2(self.raw) };
    }
}
