//! CUDA graphs: launches that are enqueued as one.
use super::cuda::driver;
use super::raw::{RawDriver, RawStream};
use crate::{Driver, Error};
use libcuda::{CUgraph, CUgraphExec};

/// Captured work, destroyed when dropped.
pub struct RawGraph<'d> {
    driver: &'d RawDriver,
    exec: CUgraphExec,
}

impl RawDriver {
    /// Captures what `work` enqueues on `stream`, and runs none of it. Kernels must be loaded before.
    ///
    /// # Errors
    /// Those of `work`, and the driver's.
    pub fn capture(&self, stream: &RawStream, work: impl FnOnce() -> Result<(), Error>) -> Result<RawGraph<'_>, Error> {
        let _entered = self.enter()?;
        let raw = stream.as_raw();
        // SAFETY: a live stream.
        driver("cuStreamBeginCapture", unsafe {
            libcuda::cuStreamBeginCapture_v2(raw, libcuda::CAPTURE_THREAD_LOCAL)
        })?;
        let worked = work();
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: ends the capture that began above; writes one handle.
        let ended = driver("cuStreamEndCapture", unsafe { libcuda::cuStreamEndCapture(raw, &mut graph) });
        worked.and(ended)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: a live graph; writes one handle, destroyed when dropped.
        let made =
            driver("cuGraphInstantiateWithFlags", unsafe { libcuda::cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
        // SAFETY: a live graph, destroyed once; what was made of it stays.
        unsafe { libcuda::cuGraphDestroy(graph) };
        made.map(|()| RawGraph { driver: self, exec })
    }

    /// Enqueues captured work.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// What made the captured launches safe holds until they have run.
    pub unsafe fn replay(&self, graph: &RawGraph<'_>, stream: &RawStream) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: live handles, and the caller's promise.
        driver("cuGraphLaunch", unsafe { libcuda::cuGraphLaunch(graph.exec, stream.as_raw()) })
    }

    /// Sets every byte of `buffer` in the order of `stream`; waits for nothing.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `buffer` stays until the stream has run, and nothing else uses it meanwhile.
    pub unsafe fn enqueue_fill(
        &self,
        buffer: &<Self as Driver>::Buffer,
        byte: u8,
        stream: &RawStream,
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        let (address, bytes) = (self.address(buffer), buffer.bytes());
        // SAFETY: the buffer is that long; the rest is the caller's promise.
        driver("cuMemsetD8Async", unsafe { libcuda::cuMemsetD8Async(address, byte, bytes, stream.as_raw()) })
    }
}

impl Drop for RawGraph<'_> {
    fn drop(&mut self) {
        let Ok(_entered) = self.driver.enter() else { return };
        // SAFETY: made once, destroyed once.
        unsafe { libcuda::cuGraphExecDestroy(self.exec) };
    }
}
