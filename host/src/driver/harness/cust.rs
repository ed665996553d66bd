//! [`Harness`] through `cust`.
use super::{Enqueue, Harness, fits, with_graph};
use crate::Error;
use crate::driver::cuda;
use crate::driver::cust::{CustDriver, CustStream, InContext, failed, is_custs};
use cust::event::{Event, EventFlags};
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use std::ops::Deref;
use std::time::Duration;

/// Device memory of a context, freed when dropped.
#[derive(Debug)]
pub struct CustBuffer(InContext<DeviceBuffer<u8>>);

/// An event of a context, destroyed when dropped.
#[derive(Debug)]
pub struct CustEvent(InContext<Event>);

is_custs!(CustBuffer DeviceBuffer<u8> CustEvent Event);

impl Harness for CustDriver {
    type Buffer = CustBuffer;
    type Event = CustEvent;

    fn stream(&self) -> Result<CustStream, Error> {
        let _entered = self.enter()?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None);
        stream.map(|stream| self.adopt(stream)).map_err(|e| failed("cuStreamCreateWithPriority", e))
    }

    fn memory_in_use(&self) -> Result<Option<u64>, Error> {
        let _entered = self.enter()?;
        let (free, total) = cust::memory::mem_get_info().map_err(|e| failed("cuMemGetInfo", e))?;
        Ok(Some((total - free) as u64))
    }

    fn allocate(&self, bytes: usize) -> Result<CustBuffer, Error> {
        let _entered = self.enter()?;
        // SAFETY: every byte is a valid value.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes) };
        buffer.map(|buffer| CustBuffer(self.keep(buffer))).map_err(|e| failed("cuMemAlloc", e))
    }

    fn address(&self, buffer: &CustBuffer) -> u64 {
        buffer.as_device_ptr().as_raw()
    }

    fn upload_at(&self, buffer: &mut CustBuffer, at: usize, data: &[u8]) -> Result<(), Error> {
        fits(buffer.len(), at, data.len())?;
        let _entered = buffer.0.context.enter()?;
        buffer.index(at..at + data.len()).copy_from(data).map_err(|e| failed("cuMemcpyHtoD", e))?;
        cuda::wait_for_default_stream()
    }

    fn download_at(&self, buffer: &CustBuffer, at: usize, data: &mut [u8]) -> Result<(), Error> {
        fits(buffer.len(), at, data.len())?;
        let _entered = buffer.0.context.enter()?;
        buffer.index(at..at + data.len()).copy_to(data).map_err(|e| failed("cuMemcpyDtoH", e))
    }

    fn fill(&self, buffer: &mut CustBuffer, byte: u8) -> Result<(), Error> {
        let _entered = buffer.0.context.enter()?;
        buffer.index(..).set_8(byte).map_err(|e| failed("cuMemsetD8", e))?;
        cuda::wait_for_default_stream()
    }

    unsafe fn with_graph(
        &self,
        stream: &CustStream,
        work: &mut Enqueue<'_>,
        then: &mut dyn FnMut(&mut Enqueue<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller makes the promises of `with_graph`.
        unsafe { with_graph(stream.as_inner().cast(), work, then) }
    }

    fn synchronize(&self, stream: &CustStream) -> Result<(), Error> {
        let _entered = self.enter()?;
        stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))
    }

    fn record(&self, stream: &CustStream) -> Result<CustEvent, Error> {
        let _entered = self.enter()?;
        let event = Event::new(EventFlags::DEFAULT).map_err(|e| failed("cuEventCreate", e))?;
        let event = CustEvent(self.keep(event));
        event.record(stream).map_err(|e| failed("cuEventRecord", e))?;
        Ok(event)
    }

    fn elapsed(&self, start: &CustEvent, end: &CustEvent) -> Result<Duration, Error> {
        let _entered = self.enter()?;
        end.synchronize().map_err(|e| failed("cuEventSynchronize", e))?;
        end.elapsed(start).map_err(|e| failed("cuEventElapsedTime", e))
    }
}
