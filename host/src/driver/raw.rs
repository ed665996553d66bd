//! CUDA through raw handles of the caller's context and streams. This driver builds without CUDA.
use super::cuda::{
    Context, Entered, Keeper, Loaded, capabilities, compile, device, driver, initialise, machine_code,
    opt_in, tensor_map,
};
use super::{Driver, MapDescription, Sealed};
use crate::{Capabilities, Contract, Error};
use libcuda::{CUmodule, CUstream};
use spec::TensorMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// CUDA through raw handles, as `cudarc`, candle, C programs and Python frameworks hold them.
#[derive(Debug)]
pub struct RawDriver {
    pub(super) context: Arc<Context>,
    capabilities: Capabilities,
}

impl RawDriver {
    /// Returns a driver on the context that is current on the calling thread, or on the primary context of
    /// device 0 if no context is current.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the machine has no driver or no device, or [`Error::Unsupported`] if the
    /// driver is older than CUDA 11.8.
    ///
    /// # Safety
    /// - The current context outlives the driver and everything that the driver makes: kernels, buffers,
    ///   streams, events, graphs.
    pub unsafe fn current() -> Result<Self, Error> {
        // SAFETY: the caller promises that the context outlives the driver. All objects of a driver share its
        // context.
        unsafe { Self::current_of(None) }
    }

    /// Returns a driver on the current context. The value `keeper` keeps that context alive. The driver holds
    /// `keeper`, and so does every object that the driver makes.
    ///
    /// # Safety
    /// - The current context outlives `keeper`. Without a keeper, the safety conditions of
    ///   [`RawDriver::current`] hold.
    pub(crate) unsafe fn current_of(keeper: Option<Keeper>) -> Result<Self, Error> {
        initialise()?;
        // SAFETY: the caller promises that the context outlives `keeper`.
        match unsafe { Context::current(keeper)? } {
            Some(context) => Self::of(context),
            None => Self::primary(0),
        }
    }

    /// Returns a driver on the primary context of a device. The CUDA runtime, `cudarc`, `cust` and PyTorch
    /// also use this context. The driver and everything that it makes retain the context.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the machine has no driver, or [`Error::Invalid`] if it has no such
    /// device, or [`Error::Unsupported`] if the driver is older than CUDA 11.8.
    pub fn primary(ordinal: u32) -> Result<Self, Error> {
        Self::of(Context::primary(device(ordinal)?)?)
    }

    fn of(context: Arc<Context>) -> Result<Self, Error> {
        let capabilities = capabilities(context.device()?)?;
        Ok(RawDriver { context, capabilities })
    }

    /// Makes the driver's context current on the calling thread until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered, Error> {
        self.context.enter()
    }

    /// Makes the kernel of a loaded module ready, in the current context.
    fn kernel(&self, module: CUmodule, contract: &Contract) -> Result<RawKernel, Error> {
        let symbol = contract.symbol;
        // From this line on, dropping the kernel unloads the module.
        let mut kernel = RawKernel {
            context: Arc::clone(&self.context),
            module,
            loaded: Loaded::new(std::ptr::null_mut(), contract),
        };
        let name = CString::new(symbol)
            .map_err(|_| Error::invalid("symbol", format!("{symbol:?}"), "it must not contain a NUL"))?;
        // SAFETY: writes one handle of the loaded module.
        let code = unsafe {
            libcuda::cuModuleGetFunction(&mut kernel.loaded.function, kernel.module, name.as_ptr())
        };
        driver("cuModuleGetFunction", code)?;
        // SAFETY: a kernel of the loaded module.
        unsafe { opt_in(kernel.loaded.function, contract, &self.capabilities)? };
        Ok(kernel)
    }
}

/// A loaded kernel.
#[derive(Debug)]
pub struct RawKernel {
    context: Arc<Context>,
    module: CUmodule,
    loaded: Loaded,
}

/// A stream of the caller, or a stream that `Harness::stream` made.
#[derive(Debug)]
pub struct RawStream {
    pub(super) raw: CUstream,
    /// The context, if this crate must destroy the stream.
    pub(super) context: Option<Arc<Context>>,
}

impl RawStream {
    /// Returns the caller's stream, by its `CUstream`. Null is the legacy default stream.
    ///
    /// ```compile_fail,E0133
    /// // A handle that dangles would reach the driver with the first `synchronize`.
    /// let stream = ferroflash::RawStream::from_raw(0x10 as *mut _);
    /// ```
    ///
    /// # Safety
    /// - `stream` is null, or a stream that outlives this value.
    pub const unsafe fn from_raw(stream: *mut c_void) -> Self {
        RawStream { raw: stream, context: None }
    }

    /// Returns the stream's handle.
    pub const fn as_raw(&self) -> *mut c_void {
        self.raw
    }
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for RawKernel {}
// SAFETY: any thread may use the driver's handles, and the driver locks its data.
unsafe impl Sync for RawKernel {}
// SAFETY: any thread may use the driver's handles.
unsafe impl Send for RawStream {}
// SAFETY: any thread may use the driver's handles, and the driver locks its data.
unsafe impl Sync for RawStream {}

impl Sealed for RawDriver {}

impl Driver for RawDriver {
    type Kernel = RawKernel;
    type Stream = RawStream;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn load(&self, ptx: &str, contract: &Contract) -> Result<RawKernel, Error> {
        let _entered = self.context.enter()?;
        self.kernel(compile(ptx)?, contract)
    }

    fn takes_cubins(&self) -> bool {
        true
    }

    unsafe fn load_cubin(&self, cubin: &[u8], contract: &Contract) -> Result<RawKernel, Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller promises valid machine code.
        self.kernel(unsafe { machine_code(cubin)? }, contract)
    }

    fn tensor_map(&self, map: &MapDescription) -> Result<TensorMap, Error> {
        let _entered = self.context.enter()?;
        tensor_map(map)
    }

    unsafe fn launch(
        &self,
        kernel: &RawKernel,
        grid: [u32; 3],
        params: &[u8],
        stream: &RawStream,
    ) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller keeps the preconditions.
        unsafe { kernel.loaded.launch(grid, params, stream.raw) }
    }
}

// A drop cannot report errors. If a call fails here, the context no longer works, so this function ignores
// the error.
impl Drop for RawKernel {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: loaded once, unloaded once.
        unsafe { libcuda::cuModuleUnload(self.module) };
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        let Some(Ok(_entered)) = self.context.as_ref().map(|context| context.enter()) else { return };
        // SAFETY: created once, destroyed once.
        unsafe { libcuda::cuStreamDestroy_v2(self.raw) };
    }
}
