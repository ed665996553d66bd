//! CUDA through `cust`: its contexts, streams, memory, modules, events and launches.
use super::cuda::{self, compile, initialise, opt_in};
use crate::{Capabilities, Driver, Error, LaunchContract};
use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::error::CudaError;
use cust::event::{Event, EventFlags};
use cust::function::Function;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::stream::{Stream, StreamFlags};
use std::ffi::c_void;
use std::time::Duration;

/// CUDA for programs that are written with `cust`. Streams and buffers are `cust`'s own.
pub struct CustDriver {
    context: Context,
    capabilities: Capabilities,
}

impl CustDriver {
    /// A device of this machine, in its primary context.
    ///
    /// # Errors
    /// [`Error::Driver`] where there is no driver, [`Error::Invalid`] where there is no such device.
    pub fn new(ordinal: u32) -> Result<Self, Error> {
        cuda::device(ordinal)?;
        cust::init(cust::CudaFlags::empty()).map_err(|e| failed("cuInit", e))?;
        let device = Device::get_device(ordinal).map_err(|e| failed("cuDeviceGet", e))?;
        Self::of(Context::new(device).map_err(|e| failed("cuDevicePrimaryCtxRetain", e))?)
    }

    /// The caller's context, retained once more. The calling thread's current context stays what it is.
    ///
    /// # Errors
    /// [`Error::Driver`] where the context is not usable.
    pub fn with_context(context: &Context) -> Result<Self, Error> {
        initialise()?;
        Self::of(context.clone())
    }

    fn of(context: Context) -> Result<Self, Error> {
        let device = cuda::Context::foreign(context.as_raw().cast()).device()?;
        Ok(CustDriver { context, capabilities: cuda::capabilities(device)? })
    }

    /// The context.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    fn enter(&self) -> Result<cuda::Entered, Error> {
        cuda::Context::foreign(self.context.as_raw().cast()).enter()
    }

    /// Makes the kernel of a loaded module ready, in the current context.
    fn kernel(&self, module: Module, contract: LaunchContract<'_>) -> Result<CustKernel, Error> {
        let module = Box::new(module);
        let function = module.get_function(contract.symbol).map_err(|e| failed("cuModuleGetFunction", e))?;
        // SAFETY: a kernel of the loaded module.
        unsafe { opt_in(function.to_raw().cast(), contract, &self.capabilities)? };
        // SAFETY: the lifetime is that of the boxed module, which lives beside the function and is dropped after it.
        let function = unsafe { std::mem::transmute::<Function<'_>, Function<'static>>(function) };
        let LaunchContract { threads, smem_bytes, .. } = contract;
        Ok(CustKernel { function, threads, smem_bytes, _module: module, _context: self.context.clone() })
    }
}

/// A loaded kernel.
pub struct CustKernel {
    /// Borrows the module in the box.
    function: Function<'static>,
    threads: u32,
    smem_bytes: u32,
    _module: Box<Module>,
    /// After the module, which it must outlive.
    _context: Context,
}

impl Driver for CustDriver {
    type Kernel = CustKernel;
    type Buffer = DeviceBuffer<u8>;
    type Stream = Stream;
    type Event = Event;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn load(&self, ptx: &str, contract: LaunchContract<'_>) -> Result<CustKernel, Error> {
        let _entered = self.enter()?;
        // cust drops the compiler's log: a text that it refuses is compiled once more for it.
        let module = Module::from_ptx(ptx, &[])
            .map_err(|e| compile(ptx).err().unwrap_or_else(|| failed("cuModuleLoadDataEx", e)))?;
        self.kernel(module, contract)
    }

    fn takes_cubins(&self) -> bool {
        true
    }

    fn load_cubin(&self, cubin: &[u8], contract: LaunchContract<'_>) -> Result<CustKernel, Error> {
        let _entered = self.enter()?;
        cuda::is_whole(cubin)?;
        let module = Module::from_cubin(cubin, &[]).map_err(|e| failed("cuModuleLoadDataEx", e))?;
        self.kernel(module, contract)
    }

    fn stream(&self) -> Result<Stream, Error> {
        let _entered = self.enter()?;
        Stream::new(StreamFlags::NON_BLOCKING, None).map_err(|e| failed("cuStreamCreateWithPriority", e))
    }

    fn memory_in_use(&self) -> Result<Option<u64>, Error> {
        let _entered = self.enter()?;
        let (free, total) = cust::memory::mem_get_info().map_err(|e| failed("cuMemGetInfo", e))?;
        Ok(Some((total - free) as u64))
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceBuffer<u8>, Error> {
        let _entered = self.enter()?;
        // SAFETY: bytes have no invalid value.
        unsafe { DeviceBuffer::uninitialized(bytes) }.map_err(|e| failed("cuMemAlloc", e))
    }

    fn address(&self, buffer: &DeviceBuffer<u8>) -> u64 {
        buffer.as_device_ptr().as_raw()
    }

    fn upload(&self, buffer: &mut DeviceBuffer<u8>, data: &[u8]) -> Result<(), Error> {
        super::fits(buffer.len(), data.len())?;
        let _entered = self.enter()?;
        buffer.index(..data.len()).copy_from(data).map_err(|e| failed("cuMemcpyHtoD", e))
    }

    fn download(&self, buffer: &DeviceBuffer<u8>, data: &mut [u8]) -> Result<(), Error> {
        super::fits(buffer.len(), data.len())?;
        let _entered = self.enter()?;
        buffer.index(..data.len()).copy_to(data).map_err(|e| failed("cuMemcpyDtoH", e))
    }

    fn fill(&self, buffer: &mut DeviceBuffer<u8>, byte: u8) -> Result<(), Error> {
        let _entered = self.enter()?;
        buffer.set_8(byte).map_err(|e| failed("cuMemsetD8", e))?;
        // Setting device memory does not wait by itself.
        CurrentContext::synchronize().map_err(|e| failed("cuCtxSynchronize", e))
    }

    unsafe fn launch(
        &self,
        kernel: &CustKernel,
        [x, y, z]: [u32; 3],
        params: &[u8],
        stream: &Stream,
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        let params = [params.as_ptr().cast_mut().cast::<c_void>()];
        let CustKernel { function, threads, smem_bytes, .. } = kernel;
        // SAFETY: the driver copies the one parameter, which is as long as the kernel's; the rest is the caller's promise.
        let launched = unsafe { stream.launch(function, (x, y, z), *threads, *smem_bytes, &params) };
        launched.map_err(|e| failed("cuLaunchKernel", e))
    }

    fn synchronize(&self, stream: &Stream) -> Result<(), Error> {
        let _entered = self.enter()?;
        stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))
    }

    fn record(&self, stream: &Stream) -> Result<Event, Error> {
        let _entered = self.enter()?;
        let event = Event::new(EventFlags::DEFAULT).map_err(|e| failed("cuEventCreate", e))?;
        event.record(stream).map_err(|e| failed("cuEventRecord", e))?;
        Ok(event)
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<Duration, Error> {
        let _entered = self.enter()?;
        end.synchronize().map_err(|e| failed("cuEventSynchronize", e))?;
        end.elapsed(start).map_err(|e| failed("cuEventElapsedTime", e))
    }
}

/// cust's error with the driver's words for its code.
fn failed(call: &'static str, error: CudaError) -> Error {
    let code = error as u32;
    match cuda::driver(call, code) {
        Err(error) => error,
        Ok(()) => Error::Driver { call, code: None, reason: "failed".into() },
    }
}
