//! Code that both CUDA drivers share: contexts, limits, shared-memory opt-in, error texts.
use super::MapDescription;
use super::map::Encoding;
use crate::{Capabilities, Contract, DType, Error};
use libcuda::{
    CUcontext, CUdevice, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUresult, CUstream, check,
    device_attribute,
};
use spec::TensorMap;
use std::any::Any;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// Converts a driver function's result code to a `Result` of this crate; `call` is the function's name.
pub(super) fn driver(call: &'static str, code: CUresult) -> Result<(), Error> {
    check(code).map_err(|e| Error::driver(call, Some(e.code), e))
}

/// Opens and initialises the driver.
pub(super) fn initialise() -> Result<(), Error> {
    libcuda::open().map_err(|e| Error::driver("open the CUDA driver", None, e))?;
    // SAFETY: a program may call `cuInit` at any time, any number of times.
    driver("cuInit", unsafe { libcuda::cuInit(0) })
}

/// Returns the device of an ordinal.
pub(super) fn device(ordinal: u32) -> Result<CUdevice, Error> {
    initialise()?;
    let mut count = 0;
    // SAFETY: writes one number.
    driver("cuDeviceGetCount", unsafe { libcuda::cuDeviceGetCount(&mut count) })?;
    let index = c_int::try_from(ordinal).ok().filter(|i| *i < count);
    let index = index.ok_or_else(|| {
        Error::invalid("device", ordinal, format_args!("it must be below {count}, the number of devices"))
    })?;
    let mut device = 0;
    // SAFETY: writes one number.
    driver("cuDeviceGet", unsafe { libcuda::cuDeviceGet(&mut device, index) })?;
    Ok(device)
}

/// Returns a device's limits.
pub(super) fn capabilities(device: CUdevice) -> Result<Capabilities, Error> {
    let attribute = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: writes one number.
        let code = unsafe { libcuda::cuDeviceGetAttribute(&mut value, attribute, device) };
        driver("cuDeviceGetAttribute", code).map(|()| value.max(0) as u32)
    };
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most the stated number of bytes.
    let code =
        unsafe { libcuda::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device) };
    driver("cuDeviceGetName", code)?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let mut memory = 0;
    // SAFETY: writes one number.
    driver("cuDeviceTotalMem", unsafe { libcuda::cuDeviceTotalMem_v2(&mut memory, device) })?;
    let mut version = 0;
    // SAFETY: writes one number.
    driver("cuDriverGetVersion", unsafe { libcuda::cuDriverGetVersion(&mut version) })?;
    if version < COMPILES_PTX {
        let feature = format_args!("a driver of CUDA {}.{}", version / 1000, version % 1000 / 10);
        let reason =
            "the kernels are PTX 7.8, which drivers compile since CUDA 11.8; update the NVIDIA driver";
        return Err(Error::unsupported(feature, reason));
    }
    let compute_capability = (attribute(device_attribute::MAJOR)?, attribute(device_attribute::MINOR)?);
    Ok(Capabilities {
        name: String::from_utf8_lossy(&name[..length]).into_owned().into(),
        compute_capability,
        sms: attribute(device_attribute::SMS)?,
        smem_per_block: attribute(device_attribute::SMEM_PER_BLOCK)?,
        smem_per_sm: attribute(device_attribute::SMEM_PER_SM)?,
        registers_per_sm: attribute(device_attribute::REGISTERS_PER_SM)?,
        l2_bytes: attribute(device_attribute::L2_BYTES)?.into(),
        memory_bytes: memory as u64,
        tensor_maps: version >= TAKES_TENSOR_MAPS && compute_capability.0 >= 9,
    })
}

/// The oldest driver version (as a CUDA version) that compiles PTX 7.8, the version of all kernels without
/// tensor maps.
const COMPILES_PTX: c_int = 11_080;

/// The oldest driver version (as a CUDA version) that compiles PTX 8.3, the version of kernels with tensor
/// maps. This driver is newer than the driver that introduced `cuTensorMapEncodeTiled`.
const TAKES_TENSOR_MAPS: c_int = 12_030;

/// Encodes a tensor map in the current context.
pub(super) fn tensor_map(map: &MapDescription) -> Result<TensorMap, Error> {
    /// The driver writes the tensor map here.
    #[repr(C, align(64))]
    struct Place(TensorMap);
    const _: () = assert!(align_of::<Place>() == TensorMap::ALIGN as usize);
    let (Encoding { rank, dims, strides, box_dims }, steps) = (map.encoding()?, [1; 5]);
    let element = match map.dtype {
        DType::E4m3 => libcuda::TENSOR_MAP_UINT8,
        DType::F16 => libcuda::TENSOR_MAP_FLOAT16,
        _ => libcuda::TENSOR_MAP_BFLOAT16,
    };
    let is_narrow = map.row_bytes() == 64;
    let swizzle = if is_narrow { libcuda::TENSOR_MAP_SWIZZLE_64B } else { libcuda::TENSOR_MAP_SWIZZLE_128B };
    let (mut map, base) = (Place(TensorMap::EMPTY), std::ptr::without_provenance_mut(map.address as usize));
    // SAFETY: the call writes 128 bytes, aligned to 64, and reads one number per dimension. The call stores
    // the tensor's address, and does not read the tensor.
    let code = unsafe {
        libcuda::cuTensorMapEncodeTiled(
            (&raw mut map.0).cast(),
            element,
            rank as c_uint,
            base,
            dims.as_ptr(),
            strides.as_ptr(),
            box_dims.as_ptr(),
            steps.as_ptr(),
            libcuda::TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            libcuda::TENSOR_MAP_L2_PROMOTION_256B,
            libcuda::TENSOR_MAP_FILL_ZERO,
        )
    };
    driver("cuTensorMapEncodeTiled", code).map(|()| map.0)
}

/// Opts a kernel in to its dynamic shared memory.
///
/// # Safety
/// `function` is a kernel of a loaded module.
pub(super) unsafe fn opt_in(
    function: CUfunction,
    contract: &Contract,
    capabilities: &Capabilities,
) -> Result<(), Error> {
    capabilities.runs(contract)?;
    let bytes = contract.smem_bytes as c_int;
    // SAFETY: the caller promises that `function` is a kernel of a loaded module.
    let code =
        unsafe { libcuda::cuFuncSetAttribute(function, libcuda::FUNCTION_MAX_DYNAMIC_SHARED_BYTES, bytes) };
    driver("cuFuncSetAttribute", code)
}

/// A kernel of a loaded module, with the numbers of its contract that a launch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    pub function: CUfunction,
    threads: c_uint,
    smem_bytes: c_uint,
    dependent: bool,
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for Loaded {}
// SAFETY: any thread may use the driver's handles, and the driver locks its data.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Returns a kernel that launches by its contract.
    pub fn new(function: CUfunction, contract: &Contract) -> Self {
        let Contract { threads, smem_bytes, .. } = *contract;
        Loaded { function, threads, smem_bytes, dependent: contract.is_dependent() }
    }

    /// Enqueues the kernel. Exactly the kernels that wait by themselves, as their contracts say, may begin
    /// before the kernel before them in the stream has ended.
    ///
    /// # Safety
    /// - The kernel's module is loaded, and its PTX keeps the promises of its contract.
    /// - `params` are the bytes of the kernel's one parameter, and the other conditions of
    ///   [`crate::Driver::launch`] hold.
    pub unsafe fn launch(&self, grid: [u32; 3], params: &[u8], stream: CUstream) -> Result<(), Error> {
        let Loaded { function, threads, smem_bytes, dependent } = *self;
        let (mut params, extra) = ([params.as_ptr().cast_mut().cast::<c_void>()], std::ptr::null_mut());
        if dependent {
            let mut attribute = CUlaunchAttribute::PROGRAMMATIC_STREAM_SERIALIZATION;
            let (block, attributes) = ([threads, 1, 1], &raw mut attribute);
            let config = CUlaunchConfig { grid, block, smem_bytes, stream, attributes, count: 1 };
            // SAFETY: as below. The kernel waits for the kernels before it, as its contract says. The driver
            // reads one attribute.
            let code = unsafe { libcuda::cuLaunchKernelEx(&config, function, params.as_mut_ptr(), extra) };
            return driver("cuLaunchKernelEx", code);
        }
        let [x, y, z] = grid;
        // SAFETY: the driver copies the one parameter, which has the size of the kernel's parameter. The
        // caller promises valid memory and a valid stream.
        let code = unsafe {
            let params = params.as_mut_ptr();
            libcuda::cuLaunchKernel(function, x, y, z, threads, 1, 1, smem_bytes, stream, params, extra)
        };
        driver("cuLaunchKernel", code)
    }
}

/// Compiles PTX in the current context. If the compiler fails, the error has its log.
pub(super) fn compile(ptx: &str) -> Result<libcuda::CUmodule, Error> {
    let text = std::ffi::CString::new(ptx)
        .map_err(|_| Error::invalid("PTX", "text with a NUL", "it must not contain a NUL"))?;
    // SAFETY: the text ends with NUL.
    unsafe { module(text.as_ptr().cast()) }
}

/// Loads machine code in the current context.
///
/// # Safety
/// See [`crate::Driver::load_cubin`].
pub(super) unsafe fn machine_code(cubin: &[u8]) -> Result<libcuda::CUmodule, Error> {
    is_whole(cubin)?;
    // SAFETY: the caller promises valid machine code; the check above covers a part of this promise.
    unsafe { module(cubin.as_ptr().cast()) }
}

/// Checks that machine code is complete. The driver does not get the length of the code: it finds the end in
/// the file's headers.
pub(super) fn is_whole(cubin: &[u8]) -> Result<(), Error> {
    let word = |at: usize, len: usize| {
        let bytes = cubin.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    // In a 64-bit file, either the section headers or the program headers come last. The closure's arguments
    // are the places of three fields: offset, size and number of the headers.
    let end = |offset: usize, size: usize, number: usize| {
        word(offset, 8)?.checked_add(word(size, 2)?.checked_mul(word(number, 2)?)?)
    };
    let ends = [end(0x20, 0x36, 0x38), end(0x28, 0x3a, 0x3c)];
    let whole = ends.iter().all(|end| end.is_some_and(|end| end <= cubin.len() as u64));
    if cubin.starts_with(b"\x7fELF\x02\x01") && whole {
        return Ok(());
    }
    Err(Error::invalid("cubin", format_args!("{} bytes", cubin.len()), "it must be a whole 64-bit ELF file"))
}

/// Loads PTX or machine code. If the compiler fails, the error has its log.
///
/// # Safety
/// `image` is text that ends with NUL, or a whole ELF file.
unsafe fn module(image: *const c_void) -> Result<libcuda::CUmodule, Error> {
    let mut log = [0u8; 4096];
    let mut names = [libcuda::JIT_ERROR_LOG_BUFFER, libcuda::JIT_ERROR_LOG_BUFFER_SIZE];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let (mut module, options) = (std::ptr::null_mut(), names.len() as c_uint);
    // SAFETY: the caller promises valid code; the arrays have the stated number of options, and the log its
    // stated length.
    let code = unsafe {
        libcuda::cuModuleLoadDataEx(&mut module, image, options, names.as_mut_ptr(), values.as_mut_ptr())
    };
    driver("cuModuleLoadDataEx", code).map(|()| module).map_err(|error| match error {
        Error::Driver { call, code, source } => {
            let length = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..length]);
            Error::driver(call, code, format!("{source}\n{log}").trim_end())
        }
        other => other,
    })
}

/// Waits for the default stream of the current context. A copy from memory that is not page-locked may return
/// before it has landed, and a call that sets memory returns at once (CUDA Driver API, "API synchronization
/// behavior"). The streams that this crate makes are not ordered with the default stream.
#[cfg(feature = "testing")]
pub(super) fn wait_for_default_stream() -> Result<(), Error> {
    // SAFETY: the default stream always lives.
    driver("cuStreamSynchronize", unsafe { libcuda::cuStreamSynchronize(std::ptr::null_mut()) })
}

/// An object of another crate that keeps a context alive.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// A context that several objects may share.
#[derive(Debug)]
pub(super) struct Context {
    raw: CUcontext,
    /// The device, if this crate retained its primary context.
    retained: Option<CUdevice>,
    _keeper: Option<Keeper>,
}

// SAFETY: any thread may use a context.
unsafe impl Send for Context {}
// SAFETY: any thread may use a context, and the driver locks the context's data.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the calling thread's context, if it has one.
    ///
    /// # Safety
    /// - The context outlives `_keeper`, or, without a keeper, the returned value.
    pub unsafe fn current(_keeper: Option<Keeper>) -> Result<Option<Arc<Self>>, Error> {
        let raw = current()?;
        Ok((!raw.is_null()).then(|| Arc::new(Context { raw, retained: None, _keeper })))
    }

    /// Returns a device's primary context.
    pub fn primary(device: CUdevice) -> Result<Arc<Self>, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes one handle, which the returned value releases when it is dropped.
        driver("cuDevicePrimaryCtxRetain", unsafe { libcuda::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        Ok(Arc::new(Context { raw, retained: Some(device), _keeper: None }))
    }

    /// Returns the primary context of the device of a `cust` context. cust's context is this primary context.
    #[cfg(feature = "cust")]
    pub fn of_cust(context: &cust::context::Context) -> Result<Arc<Self>, Error> {
        let borrowed = Context { raw: context.as_raw().cast(), retained: None, _keeper: None };
        Self::primary(borrowed.device()?)
    }

    /// Returns the context's device.
    pub fn device(&self) -> Result<CUdevice, Error> {
        let _entered = self.enter()?;
        let mut device = 0;
        // SAFETY: writes one number.
        driver("cuCtxGetDevice", unsafe { libcuda::cuCtxGetDevice(&mut device) })?;
        Ok(device)
    }

    /// Makes the context current on the calling thread until the guard is dropped. If the context is current
    /// already, `enter` costs one query.
    pub fn enter(&self) -> Result<Entered, Error> {
        if current()? == self.raw {
            return Ok(Entered { pushed: false });
        }
        // SAFETY: the context lives.
        driver("cuCtxPushCurrent", unsafe { libcuda::cuCtxPushCurrent_v2(self.raw) })?;
        Ok(Entered { pushed: true })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(device) = self.retained {
            // SAFETY: `primary` retained the context once. A failure at the end of the process does no harm.
            unsafe { libcuda::cuDevicePrimaryCtxRelease_v2(device) };
        }
    }
}

/// A guard: the calling thread is in a context, and dropping the guard leaves the context.
pub(super) struct Entered {
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops the context that `enter` pushed on this thread.
            unsafe { libcuda::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

fn current() -> Result<CUcontext, Error> {
    let mut context = std::ptr::null_mut();
    // SAFETY: writes one handle.
    driver("cuCtxGetCurrent", unsafe { libcuda::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_that_is_cut_short() {
        let mut file = vec![0u8; 256];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        // The file has two section headers of 64 bytes at 128, and one program header of 56 bytes at 64.
        file[0x28] = 128;
        file[0x20] = 64;
        (file[0x3a], file[0x3c], file[0x36], file[0x38]) = (64, 2, 56, 1);
        assert_eq!(is_whole(&file), Ok(()));
        for cut in [0, 5, 0x3d, 200, 255] {
            assert!(is_whole(&file[..cut]).is_err(), "{cut}");
        }
        file[0x2f] = 0x80;
        assert!(is_whole(&file).is_err(), "an offset beyond the file");
        assert!(is_whole(&[b'.'; 300]).is_err(), "text");
    }
}
