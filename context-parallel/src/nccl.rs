//! Ranks that are GPUs, by NCCL.
use crate::transport::{Transfer, Transport};
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::{CudaContext, DriverError, sys as cuda};
use cudarc::nccl::result::{self as calls, NcclError};
use cudarc::nccl::sys as nccl;
use ferroflash::Error;
use ferroflash::driver::{RawDriver, RawStream};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A rank on a GPU: a communicator of NCCL, with a stream for transfers. The stream has the highest priority,
/// so that transfers find room beside a kernel that fills the GPU.
///
/// The program needs `libnccl.so` when it runs, not when it is built.
#[derive(Debug)]
pub struct Nccl {
    raw: nccl::ncclComm_t,
    context: Arc<CudaContext>,
    stream: cuda::CUstream,
    /// Recorded on the compute stream before transfers, and on the own stream behind them.
    events: [cuda::CUevent; 2],
    place: [usize; 2],
    is_aborted: AtomicBool,
}

// SAFETY: any thread may use the handles of the driver and of NCCL.
unsafe impl Send for Nccl {}

/// The identity of a communicator: one rank makes it, and gives it to the others by any means.
pub type NcclId = [u8; 128];

impl Nccl {
    /// Makes the identity of a communicator.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the machine has no NCCL, or NCCL fails.
    pub fn id() -> Result<NcclId, Error> {
        present()?;
        let id = calls::get_uniqueid().map_err(|error| failed("ncclGetUniqueId", &error))?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// Joins a communicator as `rank` of `ranks`, on the primary context of a device. Waits until all ranks
    /// have joined.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the machine has no NCCL or no such device, or NCCL fails.
    pub fn new(ordinal: usize, rank: usize, ranks: usize, id: &NcclId) -> Result<Self, Error> {
        present()?;
        let context =
            CudaContext::new(ordinal).map_err(|error| of_cuda("cuDevicePrimaryCtxRetain", error))?;
        let id = nccl::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle. `CudaContext::new` has made the context current.
        let joined = unsafe { calls::comm_init_rank(&mut raw, ranks as c_int, id, rank as c_int) };
        joined.map_err(|error| failed("ncclCommInitRank", &error))?;
        let (_, highest) =
            stream::get_priority_range().map_err(|e| of_cuda("cuCtxGetStreamPriorityRange", e))?;
        let stream = stream::create_with_priority(stream::StreamKind::NonBlocking, highest)
            .map_err(|error| of_cuda("cuStreamCreateWithPriority", error))?;
        let event = || {
            let flags = cuda::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            event::create(flags).map_err(|error| of_cuda("cuEventCreate", error))
        };
        let (events, is_aborted) = ([event()?, event()?], AtomicBool::new(false));
        Ok(Nccl { raw, context, stream, events, place: [rank, ranks], is_aborted })
    }

    /// Waits until a stream's work has run. If a rank has ended, or the work takes longer than `limit`, the
    /// function ends the transfers of this rank and returns an error. Call it where a program would
    /// synchronise the stream: without it, a GPU waits for a lost rank forever.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if a rank has ended, or the work takes longer than `limit`, or fails.
    ///
    /// # Safety
    /// - `stream` belongs to the primary context of the rank's device.
    pub unsafe fn wait(&self, stream: &RawStream, limit: Duration) -> Result<(), Error> {
        self.enter()?;
        let end = Instant::now() + limit;
        loop {
            // SAFETY: the caller promises a live stream.
            match unsafe { cuda::cuStreamQuery(stream.as_raw().cast()) } {
                cuda::CUresult::CUDA_SUCCESS => return Ok(()),
                cuda::CUresult::CUDA_ERROR_NOT_READY => {}
                other => return Err(of_cuda("cuStreamQuery", DriverError(other))),
            }
            let mut error = nccl::ncclResult_t::ncclSuccess;
            // SAFETY: a live communicator; writes one number.
            let asked = unsafe { nccl::ncclCommGetAsyncError(self.raw, &mut error) };
            let lost =
                [asked, error].map(|code| code.result().map_err(|e| failed("ncclCommGetAsyncError", &e)));
            if let Some(Err(error)) = lost.into_iter().find(Result::is_err) {
                self.abort();
                return Err(error);
            }
            if Instant::now() > end {
                self.abort();
                let message = format!("the transfers have not ended within {} s", limit.as_secs_f64());
                return Err(Error::driver("Nccl::wait", None, message));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Ends all transfers of this rank. Later transfers fail.
    pub fn abort(&self) {
        if !self.is_aborted.swap(true, Ordering::SeqCst) {
            // SAFETY: a live communicator, which nothing uses afterwards. An error leaves nothing to do.
            let _ = unsafe { calls::comm_abort(self.raw) };
        }
    }

    /// Makes the context current.
    fn enter(&self) -> Result<(), Error> {
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(Error::driver("Nccl", None, "this rank has ended its transfers"));
        }
        self.context.bind_to_thread().map_err(|error| of_cuda("cuCtxSetCurrent", error))
    }

    /// Makes later work of one stream wait for the work that another stream has now.
    ///
    /// # Safety
    /// - Both streams are live streams of the context.
    unsafe fn order(&self, event: usize, from: cuda::CUstream, to: cuda::CUstream) -> Result<(), Error> {
        let event = self.events[event];
        // SAFETY: live handles. A wait counts the last record before it, so the event serves every call.
        unsafe { event::record(event, from) }.map_err(|error| of_cuda("cuEventRecord", error))?;
        let flags = cuda::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { stream::wait_event(to, event, flags) }.map_err(|error| of_cuda("cuStreamWaitEvent", error))
    }

    /// Enqueues one transfer.
    ///
    /// # Safety
    /// The requirements of [`Transport::start`].
    unsafe fn enqueue(&self, transfer: &Transfer) -> Result<(), Error> {
        let (byte, stream) = (nccl::ncclDataType_t::ncclUint8, self.stream.cast());
        // SAFETY: the caller promises memory of this size.
        let (call, enqueued) = unsafe {
            match *transfer {
                Transfer::Send { to, address, bytes } => {
                    let from = address as *const c_void;
                    ("ncclSend", calls::send(from, bytes as usize, byte, to as c_int, self.raw, stream))
                }
                Transfer::Receive { from, address, bytes } => {
                    let to = address as *mut c_void;
                    ("ncclRecv", calls::recv(to, bytes as usize, byte, from as c_int, self.raw, stream))
                }
            }
        };
        enqueued.map(|_| ()).map_err(|error| failed(call, &error))
    }
}

impl Transport<RawDriver> for Nccl {
    fn rank(&self) -> usize {
        self.place[0]
    }

    fn ranks(&self) -> usize {
        self.place[1]
    }

    unsafe fn start(&self, _: &RawDriver, stream: &RawStream, transfers: &[Transfer]) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the caller promises a live stream of the context.
        unsafe { self.order(0, stream.as_raw().cast(), self.stream)? };
        calls::group_start().map_err(|error| failed("ncclGroupStart", &error))?;
        // SAFETY: the caller makes the promises.
        let enqueued = transfers.iter().try_for_each(|transfer| unsafe { self.enqueue(transfer) });
        let ended = calls::group_end().map_err(|error| failed("ncclGroupEnd", &error));
        enqueued.and(ended.map(|_| ()))
    }

    unsafe fn finish(&self, _: &RawDriver, stream: &RawStream) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the caller promises a live stream of the context.
        unsafe { self.order(1, self.stream, stream.as_raw().cast()) }
    }

    unsafe fn clear(&self, _: &RawDriver, stream: &RawStream, address: u64, bytes: u64) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the caller promises memory of this size and a live stream.
        unsafe { result::memset_d8_async(address, 0, bytes as usize, stream.as_raw().cast()) }
            .map_err(|error| of_cuda("cuMemsetD8Async", error))
    }
}

impl Drop for Nccl {
    // A drop cannot report errors.
    fn drop(&mut self) {
        self.abort();
        let _ = self.context.bind_to_thread();
        // SAFETY: created once, destroyed once. The transfers have ended.
        unsafe {
            let _ = stream::destroy(self.stream);
            let _ = self.events.map(|event| event::destroy(event));
        }
    }
}

/// Checks that the machine has NCCL.
fn present() -> Result<(), Error> {
    // SAFETY: loads NCCL, which the next call needs.
    if unsafe { nccl::is_culib_present() } {
        return Ok(());
    }
    let message = "there is no libnccl.so; install NCCL, or make a link libnccl.so to the file libnccl.so.2 \
                   of PyTorch in a folder of LD_LIBRARY_PATH";
    Err(Error::driver("dlopen", None, message))
}

fn failed(call: &'static str, error: &NcclError) -> Error {
    Error::driver(call, Some(error.0 as u32), format!("{:?}", error.0))
}

fn of_cuda(call: &'static str, error: DriverError) -> Error {
    Error::driver(call, Some(error.0 as u32), format!("{:?}", error.0))
}
