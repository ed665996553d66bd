//! Typed declarations of the driver functions that a launcher needs.
use crate::library::{CUresult, driver_functions};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A device's handle.
pub type CUdevice = c_int;
/// An address in device memory.
pub type CUdeviceptr = u64;
/// A context.
pub type CUcontext = *mut c_void;
/// A loaded module.
pub type CUmodule = *mut c_void;
/// A kernel of a module.
pub type CUfunction = *mut c_void;
/// A stream; null is the legacy default stream.
pub type CUstream = *mut c_void;
/// An event.
pub type CUevent = *mut c_void;
/// A graph.
pub type CUgraph = *mut c_void;
/// An instantiated graph.
pub type CUgraphExec = *mut c_void;

/// `CU_JIT_ERROR_LOG_BUFFER`.
pub const JIT_ERROR_LOG_BUFFER: c_int = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
pub const JIT_ERROR_LOG_BUFFER_SIZE: c_int = 6;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub const FUNCTION_MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub const CAPTURE_THREAD_LOCAL: c_int = 1;
/// `CU_TENSOR_MAP_DATA_TYPE_UINT8`.
pub const TENSOR_MAP_UINT8: c_int = 0;
/// `CU_TENSOR_MAP_DATA_TYPE_FLOAT16`.
pub const TENSOR_MAP_FLOAT16: c_int = 6;
/// `CU_TENSOR_MAP_DATA_TYPE_BFLOAT16`.
pub const TENSOR_MAP_BFLOAT16: c_int = 9;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
pub const TENSOR_MAP_INTERLEAVE_NONE: c_int = 0;
/// `CU_TENSOR_MAP_SWIZZLE_64B`.
pub const TENSOR_MAP_SWIZZLE_64B: c_int = 2;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
pub const TENSOR_MAP_SWIZZLE_128B: c_int = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
pub const TENSOR_MAP_L2_PROMOTION_256B: c_int = 3;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: zeros.
pub const TENSOR_MAP_FILL_ZERO: c_int = 0;

/// `CUlaunchConfig`: grid, threads, shared memory, stream and attributes of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    /// Number of blocks in x, y and z.
    pub grid: [c_uint; 3],
    /// Number of threads per block in x, y and z.
    pub block: [c_uint; 3],
    /// Bytes of dynamic shared memory.
    pub smem_bytes: c_uint,
    /// The stream.
    pub stream: CUstream,
    /// The attributes.
    pub attributes: *mut CUlaunchAttribute,
    /// Number of attributes.
    pub count: c_uint,
}

/// `CUlaunchAttribute`. The driver's value is a union of 64 bytes, aligned to 8.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttribute {
    /// A `CUlaunchAttributeID`.
    pub id: c_int,
    padding: c_int,
    value: [u8; 64],
}

impl CUlaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION` with the value 1: the kernel may begin before
    /// the kernel before it in the stream has ended.
    pub const PROGRAMMATIC_STREAM_SERIALIZATION: Self = {
        let [a, b, c, d] = c_int::to_ne_bytes(1);
        let mut value = [0; 64];
        (value[0], value[1], value[2], value[3]) = (a, b, c, d);
        CUlaunchAttribute { id: 6, padding: 0, value }
    };
}

// The sizes of CUDA's structs on 64-bit systems.
const _: () = assert!(size_of::<CUlaunchConfig>() == 56 && size_of::<CUlaunchAttribute>() == 72);

/// `CUdevice_attribute` values.
pub mod device_attribute {
    use std::ffi::c_int;
    /// Streaming multiprocessors.
    pub const SMS: c_int = 16;
    /// L2 cache, bytes.
    pub const L2_BYTES: c_int = 38;
    /// Compute capability, major.
    pub const MAJOR: c_int = 75;
    /// Compute capability, minor.
    pub const MINOR: c_int = 76;
    /// Shared memory of an SM, in bytes.
    pub const SMEM_PER_SM: c_int = 81;
    /// Registers of an SM.
    pub const REGISTERS_PER_SM: c_int = 82;
    /// Shared memory of a block with opt-in, in bytes.
    pub const SMEM_PER_BLOCK: c_int = 97;
}

driver_functions! {
    /// Initialises the driver; flags are 0.
    cuInit(flags: c_uint);
    /// Gets the CUDA version that the driver supports, as `1000 * major + 10 * minor`.
    cuDriverGetVersion(version: *mut c_int);
    /// Name of a result code.
    cuGetErrorName(code: CUresult, name: *mut *const c_char);
    /// Description of a result code.
    cuGetErrorString(code: CUresult, text: *mut *const c_char);

    /// Number of devices.
    cuDeviceGetCount(count: *mut c_int);
    /// Gets the device of an ordinal.
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    /// A device's name.
    cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    /// Gets a device's address on the PCI bus, for example `0000:3b:00.0`.
    cuDeviceGetPCIBusId(address: *mut c_char, length: c_int, device: CUdevice);
    /// A device's attribute.
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    /// A device's memory in bytes.
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    /// Retains a device's primary context.
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    /// Releases a device's primary context.
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);

    /// Gets the calling thread's current context.
    cuCtxGetCurrent(context: *mut CUcontext);
    /// Sets the calling thread's context.
    cuCtxSetCurrent(context: CUcontext);
    /// Pushes a context on the calling thread's stack.
    cuCtxPushCurrent_v2(context: CUcontext);
    /// Pops the calling thread's context.
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    /// The current context's device.
    cuCtxGetDevice(device: *mut CUdevice);
    /// Waits for all work of the current context.
    cuCtxSynchronize();

    /// Loads a module from PTX text, a cubin or a fat binary.
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, options: c_uint, names: *mut c_int,
        values: *mut *mut c_void);
    /// Unloads a module.
    cuModuleUnload(module: CUmodule);
    /// Finds a kernel.
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    /// A kernel's attribute.
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction);
    /// Sets a kernel's attribute.
    cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
    /// Gets the number of a kernel's blocks that fit one SM.
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int,
        smem_bytes: usize);
    /// Enqueues a kernel.
    cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        smem_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    /// Enqueues a kernel with attributes. The function exists since CUDA 11.8.
    cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );

    /// Encodes a tensor map: 128 bytes, aligned to 64. The function exists since CUDA 12.0.
    cuTensorMapEncodeTiled(
        map: *mut c_void, element: c_int, rank: c_uint, address: *mut c_void, dims: *const u64,
        strides: *const u64, box_dims: *const c_uint, element_strides: *const c_uint, interleave: c_int,
        swizzle: c_int, l2_promotion: c_int, fill: c_int,
    );

    /// Gets the number of free bytes of device memory, and of all bytes.
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// Allocates device memory.
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    /// Frees device memory.
    cuMemFree_v2(address: CUdeviceptr);
    /// Copies to the device, and waits.
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
    /// Copies from the device, and waits.
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    /// Sets bytes of device memory.
    cuMemsetD8_v2(address: CUdeviceptr, byte: u8, bytes: usize);
    /// Sets bytes of device memory, in stream order.
    cuMemsetD8Async(address: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);

    /// Creates a stream.
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    /// Destroys a stream.
    cuStreamDestroy_v2(stream: CUstream);
    /// Waits for a stream's work.
    cuStreamSynchronize(stream: CUstream);
    /// Begins to capture a stream's work as a graph.
    cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
    /// Ends the capture.
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    /// Instantiates a graph.
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    /// Enqueues a graph.
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    /// Destroys an instantiated graph.
    cuGraphExecDestroy(exec: CUgraphExec);
    /// Destroys a graph.
    cuGraphDestroy(graph: CUgraph);

    /// Creates an event.
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    /// Destroys an event.
    cuEventDestroy_v2(event: CUevent);
    /// Records an event.
    cuEventRecord(event: CUevent, stream: CUstream);
    /// Waits for an event.
    cuEventSynchronize(event: CUevent);
    /// Gets the milliseconds between two events.
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
}
