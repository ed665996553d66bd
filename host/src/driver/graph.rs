//! CUDA graphs: several launches, captured once and enqueued together.
use super::cuda::driver;
use super::raw::{RawDriver, RawStream};
use crate::Error;
use libcuda::{CUgraph, CUgraphExec, CUstream};
use std::mem::ManuallyDrop;

/// A captured CUDA graph, destroyed when dropped.
#[derive(Debug)]
pub struct RawGraph<'d> {
    driver: &'d RawDriver,
    exec: CUgraphExec,
}

// SAFETY: any thread may use a graph, but only one at a time: it is not `Sync`.
unsafe impl Send for RawGraph<'_> {}

/// A stream that captures the work enqueued on it. Dropping a `Capture` ends the capture and discards it.
struct Capture(CUstream);

impl Capture {
    fn begin(stream: CUstream) -> Result<Self, Error> {
        // SAFETY: the stream lives. Calls of other threads do not affect the capture.
        driver("cuStreamBeginCapture", unsafe {
            libcuda::cuStreamBeginCapture_v2(stream, libcuda::CAPTURE_THREAD_LOCAL)
        })?;
        Ok(Capture(stream))
    }

    fn end(self) -> Result<Captured, Error> {
        ManuallyDrop::new(self).graph()
    }

    fn graph(&self) -> Result<Captured, Error> {
        // `graph` exists before the error check: if the driver fails but returns a graph, the drop destroys
        // that graph.
        let mut graph = Captured(std::ptr::null_mut());
        // SAFETY: the call ends the capture that `begin` began, and writes one handle.
        let code = unsafe { libcuda::cuStreamEndCapture(self.0, &mut graph.0) };
        driver("cuStreamEndCapture", code).map(|()| graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // The result is ignored: the caller already has the error or the panic that ended the capture early.
        let _ = self.graph();
    }
}

/// A captured graph, destroyed when dropped.
struct Captured(CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph was made once and is destroyed once. Graphs that were instantiated from it
            // stay valid.
            unsafe { libcuda::cuGraphDestroy(self.0) };
        }
    }
}

/// A graph that can be launched. The drop destroys it, in the context that is current at that time.
pub(super) struct Exec(pub(super) CUgraphExec);

impl Exec {
    /// Captures the work that `work` enqueues on a live stream of the current context.
    pub(super) fn capture(stream: CUstream, work: impl FnOnce() -> Result<(), Error>) -> Result<Self, Error> {
        let capture = Capture::begin(stream)?;
        work()?;
        let graph = capture.end()?;
        let mut exec = Exec(std::ptr::null_mut());
        // SAFETY: the graph lives. The call writes one handle, which `Exec` destroys when it is dropped.
        driver("cuGraphInstantiateWithFlags", unsafe {
            libcuda::cuGraphInstantiateWithFlags(&mut exec.0, graph.0, 0)
        })?;
        Ok(exec)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph was made once and is destroyed once.
            unsafe { libcuda::cuGraphExecDestroy(self.0) };
        }
    }
}

impl RawDriver {
    /// Captures the launches of `work` on `stream`, without running them. Load the kernels before the
    /// capture. If `work` fails or panics, the capture is discarded, and the stream works as before.
    ///
    /// # Errors
    /// Returns the errors of `work`, and [`Error::Driver`] if the driver fails.
    pub fn capture(
        &self,
        stream: &RawStream,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<RawGraph<'_>, Error> {
        let _entered = self.enter()?;
        let exec = ManuallyDrop::new(Exec::capture(stream.as_raw(), work)?);
        Ok(RawGraph { driver: self, exec: exec.0 })
    }

    /// Enqueues captured work.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - The preconditions of the captured launches hold until the graph has run.
    /// - `stream` is a stream of this driver's context, and this driver captured `graph`.
    pub unsafe fn replay(&self, graph: &RawGraph<'_>, stream: &RawStream) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the handles live, and the caller promises the rest.
        driver("cuGraphLaunch", unsafe { libcuda::cuGraphLaunch(graph.exec, stream.as_raw()) })
    }
}

impl Drop for RawGraph<'_> {
    fn drop(&mut self) {
        let Ok(_entered) = self.driver.enter() else { return };
        drop(Exec(self.exec));
    }
}
