//! Ranks that are GPUs, by NCCL.
use crate::transport::{Rows, Transfer, Transport};
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::{CudaContext, DriverError, sys as cuda};
use cudarc::nccl::result::{self as calls, NcclError, NcclStatus};
use cudarc::nccl::sys as nccl;
use ferroflash::Error;
use ferroflash::driver::{RawDriver, RawStream};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A rank on a GPU: a communicator of NCCL, with a stream for transfers. The stream has the highest
/// priority, so that transfers find room beside a kernel that fills the GPU. The communicator does not
/// block: no call of NCCL waits for another rank, so each wait of this type has a limit.
///
/// The program needs `libnccl.so` when it runs, not when it is built.
#[derive(Debug)]
pub struct Nccl {
    raw: nccl::ncclComm_t,
    context: Arc<CudaContext>,
    stream: cuda::CUstream,
    /// Recorded on the compute stream before transfers, on the own stream behind them, and before them.
    events: [cuda::CUevent; 3],
    /// Whether the compute stream has waited for all transfers.
    is_finished: Cell<bool>,
    place: [usize; 2],
    /// Of a wait for NCCL: until all ranks have joined or left, or until transfers are on the stream.
    limit: Duration,
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
    /// have joined, or until `limit` has passed. Later transfers are on their stream within `limit`, too: the
    /// first ones of two ranks connect them.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if a rank does not join, if the machine has no NCCL or no such device, or if
    /// NCCL fails.
    pub fn new(
        ordinal: usize,
        [rank, ranks]: [usize; 2],
        id: &NcclId,
        limit: Duration,
    ) -> Result<Self, Error> {
        if rank >= ranks || ranks > c_int::MAX as usize {
            return Err(Error::invalid("rank", rank, format_args!("it must be below the {ranks} ranks")));
        }
        present()?;
        let context =
            CudaContext::new(ordinal).map_err(|error| of_cuda("cuDevicePrimaryCtxRetain", error))?;
        let (_, highest) =
            stream::get_priority_range().map_err(|e| of_cuda("cuCtxGetStreamPriorityRange", e))?;
        let stream = stream::create_with_priority(stream::StreamKind::NonBlocking, highest)
            .map_err(|error| of_cuda("cuStreamCreateWithPriority", error))?;
        let event = || {
            let flags = cuda::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            event::create(flags).map_err(|error| of_cuda("cuEventCreate", error))
        };
        let events = [event()?, event()?, event()?];
        let id = nccl::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let (mut raw, mut config) = (std::ptr::null_mut(), Config::NON_BLOCKING);
        let config = (&raw mut config).cast();
        // SAFETY: writes one handle, and reads a config of the size that it states. `CudaContext::new` has
        // made the context current.
        let joined =
            unsafe { calls::comm_init_rank_config(&mut raw, ranks as c_int, id, rank as c_int, config) };
        // From here on, `drop` ends the communicator.
        let is_aborted = AtomicBool::new(raw.is_null());
        let (place, is_finished) = ([rank, ranks], Cell::new(true));
        let new = Nccl { raw, context, stream, events, is_finished, place, limit, is_aborted };
        joined.map_err(|error| failed("ncclCommInitRankConfig", &error))?;
        new.settle("ncclCommInitRankConfig")?;
        Ok(new)
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
        let wait = Wait::new(limit);
        loop {
            // SAFETY: the caller promises a live stream.
            match unsafe { cuda::cuStreamQuery(stream.as_raw().cast()) } {
                cuda::CUresult::CUDA_SUCCESS => return Ok(()),
                cuda::CUresult::CUDA_ERROR_NOT_READY => {}
                other => return Err(of_cuda("cuStreamQuery", DriverError(other))),
            }
            self.status("ncclCommGetAsyncError")?;
            if wait.is_over() {
                self.abort();
                let message = format!("the transfers have not ended within {} s", limit.as_secs_f64());
                return Err(Error::driver("Nccl::wait", None, message));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns whether the communicator has done what it was told. After an error, ends the transfers.
    fn status(&self, call: &'static str) -> Result<NcclStatus, Error> {
        let mut state = nccl::ncclResult_t::ncclSuccess;
        // SAFETY: a live communicator; writes one number.
        let asked = unsafe { nccl::ncclCommGetAsyncError(self.raw, &mut state) };
        asked.result().and_then(|_| state.result()).map_err(|error| {
            self.abort();
            failed(call, &error)
        })
    }

    /// Waits until the communicator has done what it was told: a call that returns may still be in progress.
    fn settle(&self, call: &'static str) -> Result<(), Error> {
        let wait = Wait::new(self.limit);
        while self.status(call)? == NcclStatus::InProgress {
            if wait.is_over() {
                self.abort();
                let limit = self.limit.as_secs_f64();
                let message = format!("it has not ended within {limit} s: has a rank ended?");
                return Err(Error::driver(call, None, message));
            }
            std::thread::yield_now();
        }
        Ok(())
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
        if self.is_finished.replace(false) {
            // Transfers and the launches behind them become ready together. The priority then puts the
            // transfers first; launches that come first would fill the GPU, and leave no SM for transfers.
            // SAFETY: as above.
            unsafe { self.order(2, self.stream, stream.as_raw().cast())? };
        }
        calls::group_start().map_err(|error| failed("ncclGroupStart", &error))?;
        // SAFETY: the caller makes the promises.
        let enqueued = transfers.iter().try_for_each(|transfer| unsafe { self.enqueue(transfer) });
        let ended = calls::group_end().map_err(|error| failed("ncclGroupEnd", &error));
        enqueued.and(ended.map(|_| ()))?;
        // Until then, the transfers may not be on their stream.
        self.settle("ncclGroupEnd")
    }

    unsafe fn finish(&self, _: &RawDriver, stream: &RawStream) -> Result<(), Error> {
        self.enter()?;
        self.is_finished.set(true);
        // SAFETY: the caller promises a live stream of the context.
        unsafe { self.order(1, self.stream, stream.as_raw().cast()) }
    }

    unsafe fn clear(&self, _: &RawDriver, stream: &RawStream, address: u64, bytes: u64) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the caller promises memory of this size and a live stream.
        unsafe { result::memset_d8_async(address, 0, bytes as usize, stream.as_raw().cast()) }
            .map_err(|error| of_cuda("cuMemsetD8Async", error))
    }

    unsafe fn write(
        &self,
        _: &RawDriver,
        stream: &RawStream,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the caller promises memory of this size and a live stream. The driver stages pageable bytes
        // before it returns.
        unsafe { result::memcpy_htod_async(address, bytes, stream.as_raw().cast()) }
            .map_err(|error| of_cuda("cuMemcpyHtoDAsync", error))
    }

    unsafe fn copy(
        &self,
        _: &RawDriver,
        stream: &RawStream,
        from: Rows,
        to: Rows,
        [rows, bytes]: [u64; 2],
    ) -> Result<(), Error> {
        self.enter()?;
        let device = cuda::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = cuda::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: from.address,
            srcArray: std::ptr::null_mut(),
            // The driver refuses a pitch below a row, also of a single row.
            srcPitch: from.apart.max(bytes) as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.address,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.apart.max(bytes) as usize,
            WidthInBytes: bytes as usize,
            Height: rows as usize,
        };
        // SAFETY: the caller promises memory of these rows and a live stream. The driver reads the struct
        // before it returns.
        unsafe { cuda::cuMemcpy2DAsync_v2(&copy, stream.as_raw().cast()) }
            .result()
            .map_err(|error| of_cuda("cuMemcpy2DAsync", error))
    }
}

impl Drop for Nccl {
    // A drop cannot report errors.
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        if !self.is_aborted.load(Ordering::SeqCst) {
            // SAFETY: a live communicator. A rank that waits for others waits in `settle`.
            let finalized = unsafe { calls::comm_finalize(self.raw) };
            if finalized.is_ok() && self.settle("ncclCommFinalize").is_ok() {
                // SAFETY: a live communicator, which nothing uses afterwards.
                let _ = unsafe { calls::comm_destroy(self.raw) };
            } else {
                self.abort();
            }
        }
        // SAFETY: created once, destroyed once. The transfers have ended.
        unsafe {
            let _ = stream::destroy(self.stream);
            let _ = self.events.map(|event| event::destroy(event));
        }
    }
}

/// A wait with a limit, which may be any: no clock shows the end of [`Duration::MAX`].
struct Wait {
    begun: Instant,
    limit: Duration,
}

impl Wait {
    fn new(limit: Duration) -> Self {
        Wait { begun: Instant::now(), limit }
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() > self.limit
    }
}

/// `ncclConfig_t` of NCCL 2.14, the first one. Later versions read as many bytes as `size` says.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// Padding here, another option in later versions, which ignore it in a config of version 2.14.
    undefined: c_int,
}

const _: () = assert!(size_of::<Config>() == 24);

/// NCCL 2.14.
const OLDEST: c_int = 21400;

impl Config {
    const NON_BLOCKING: Self = Config {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: OLDEST as u32,
        blocking: 0,
        undefined: c_int::MIN,
    };
}

/// Checks that the machine has CUDA and NCCL.
fn present() -> Result<(), Error> {
    // SAFETY: loads the libraries, which the next calls need.
    let [has_cuda, has_nccl] = unsafe { [cuda::is_culib_present(), nccl::is_culib_present()] };
    if !has_cuda {
        return Err(Error::driver("dlopen", None, "there is no libcuda.so; install NVIDIA's driver"));
    }
    if has_nccl {
        let version = calls::get_nccl_version().map_err(|error| failed("ncclGetVersion", &error))?;
        if version >= OLDEST {
            return Ok(());
        }
        let message = format!("it says {version}; communicators that do not block are there since 21400");
        return Err(Error::driver("ncclGetVersion", None, message));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_may_have_any_limit() {
        assert!(!Wait::new(Duration::MAX).is_over());
        let short = Wait::new(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        assert!(short.is_over());
    }
}
