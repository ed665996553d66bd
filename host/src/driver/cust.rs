//! CUDA through `cust`: its contexts, streams, memory, modules, events and launches.
use super::cuda::{self, Loaded, compile, initialise, opt_in};
use super::{Driver, MapDescription, Sealed};
use crate::{Capabilities, Contract, Error};
use cust::context::{Context, CurrentContext};
use cust::error::CudaError;
use cust::module::Module;
use cust::stream::Stream;
use spec::TensorMap;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

/// CUDA for programs that use `cust`. The driver [adopts](CustDriver::adopt) streams of `cust`. No call
/// changes the calling thread's current context.
#[derive(Debug)]
pub struct CustDriver {
    context: Context,
    /// A handle of the context that `cust` made. The driver enters the context through this handle, and its
    /// objects keep the handle alive.
    own: Arc<cuda::Context>,
    capabilities: Capabilities,
}

impl CustDriver {
    /// Returns a driver on the primary context of a device.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the machine has no driver, or [`Error::Invalid`] if it has no such
    /// device, or [`Error::Unsupported`] if the driver is older than CUDA 11.8.
    pub fn new(ordinal: u32) -> Result<Self, Error> {
        Self::of(cuda::Context::primary(cuda::device(ordinal)?)?)
    }

    /// Returns a driver on the caller's context, which the driver retains.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the context is not usable, or [`Error::Unsupported`] if the driver is
    /// older than CUDA 11.8.
    pub fn with_context(context: &Context) -> Result<Self, Error> {
        initialise()?;
        Self::of(cuda::Context::of_cust(context)?)
    }

    fn of(own: Arc<cuda::Context>) -> Result<Self, Error> {
        let capabilities = cuda::capabilities(own.device()?)?;
        // cust makes a retained context the current one. Inside this guard, the context is current already.
        let entered = own.enter()?;
        let device = CurrentContext::get_device().map_err(|e| failed("cuCtxGetDevice", e))?;
        let context = Context::new(device).map_err(|e| failed("cuDevicePrimaryCtxRetain", e))?;
        drop(entered);
        Ok(CustDriver { context, own, capabilities })
    }

    /// Returns the driver's context.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Makes a stream of `cust` usable for launches. The result also holds this driver's context.
    pub fn adopt(&self, stream: Stream) -> CustStream {
        CustStream(self.keep(stream))
    }

    pub(super) fn enter(&self) -> Result<cuda::Entered, Error> {
        self.own.enter()
    }

    /// Wraps an object that was made in this driver's context.
    pub(super) fn keep<T>(&self, value: T) -> InContext<T> {
        InContext { value: ManuallyDrop::new(value), context: Arc::clone(&self.own) }
    }

    /// Makes the kernel of a loaded module ready, in the current context.
    fn kernel(&self, module: Module, contract: &Contract) -> Result<CustKernel, Error> {
        let module = self.keep(module);
        has_no_nul("symbol", contract.symbol)?;
        let function = module.get_function(contract.symbol).map_err(|e| failed("cuModuleGetFunction", e))?;
        let function = function.to_raw().cast();
        // SAFETY: a kernel of the loaded module.
        unsafe { opt_in(function, contract, &self.capabilities)? };
        Ok(CustKernel { loaded: Loaded::new(function, contract), _module: module })
    }
}

/// An object of `cust` with its context. cust destroys an object in whichever context is current, so the drop
/// enters the object's own context first.
#[derive(Debug)]
pub(super) struct InContext<T> {
    value: ManuallyDrop<T>,
    pub(super) context: Arc<cuda::Context>,
}

impl<T> Deref for InContext<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for InContext<T> {
    fn drop(&mut self) {
        // If `enter` fails, the context no longer works, and the object needs no release.
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: the value is dropped once, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.value) };
    }
}

/// A loaded kernel.
#[derive(Debug)]
pub struct CustKernel {
    loaded: Loaded,
    _module: InContext<Module>,
}

/// A stream of a context, destroyed when dropped.
#[derive(Debug)]
pub struct CustStream(InContext<Stream>);

/// Implements conversions between a wrapper and the `cust` type inside.
macro_rules! is_custs {
    ($($own:ident $custs:ty)*) => {
        $(impl Deref for $own {
            type Target = $custs;

            fn deref(&self) -> &$custs {
                &self.0
            }
        })*
    };
}
#[cfg(feature = "testing")]
pub(super) use is_custs;
is_custs!(CustStream Stream);

/// Checks that a text has no NUL: cust converts texts to C strings with `expect`, which would panic.
fn has_no_nul(what: &'static str, text: &str) -> Result<(), Error> {
    match text.find('\0') {
        None => Ok(()),
        Some(at) => Err(Error::invalid(what, format_args!("a NUL at byte {at}"), "it must not contain NUL")),
    }
}

impl Sealed for CustDriver {}

impl Driver for CustDriver {
    type Kernel = CustKernel;
    type Stream = CustStream;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn load(&self, ptx: &str, contract: &Contract) -> Result<CustKernel, Error> {
        let _entered = self.enter()?;
        has_no_nul("PTX", ptx)?;
        // cust drops the compiler's log. If the driver refuses a text, this function compiles the text once
        // more, to get the log.
        let module = Module::from_ptx(ptx, &[])
            .map_err(|e| compile(ptx).err().unwrap_or_else(|| failed("cuModuleLoadDataEx", e)))?;
        self.kernel(module, contract)
    }

    fn takes_cubins(&self) -> bool {
        true
    }

    unsafe fn load_cubin(&self, cubin: &[u8], contract: &Contract) -> Result<CustKernel, Error> {
        let _entered = self.enter()?;
        cuda::is_whole(cubin)?;
        let module = Module::from_cubin(cubin, &[]).map_err(|e| failed("cuModuleLoadDataEx", e))?;
        self.kernel(module, contract)
    }

    fn tensor_map(&self, map: &MapDescription) -> Result<TensorMap, Error> {
        let _entered = self.enter()?;
        cuda::tensor_map(map)
    }

    unsafe fn launch(
        &self,
        kernel: &CustKernel,
        grid: [u32; 3],
        params: &[u8],
        stream: &CustStream,
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller keeps the preconditions.
        unsafe { kernel.loaded.launch(grid, params, stream.as_inner().cast()) }
    }
}

/// Returns cust's error with the driver's text for its code.
pub(super) fn failed(call: &'static str, error: CudaError) -> Error {
    let code = error as u32;
    match cuda::driver(call, code) {
        Err(error) => error,
        Ok(()) => Error::driver(call, None, "failed"),
    }
}
