//! What runs kernels: CUDA through `cust`, CUDA through raw handles, or the simulator.
//!
//! | driver | context, streams and memory | to build |
//! |---|---|---|
//! | [`RawDriver`] | the caller's, as raw handles | nothing |
//! | `CustDriver` | `cust`'s (feature `cust`) | a CUDA installation |
//! | `SimDriver` | the simulator's, on the CPU (feature `sim`) | nothing |
//!
//! [`Attention`](crate::Attention) calls a [`Driver`] and nothing else. Tests and tools allocate, copy and measure
//! by [`Harness`].
use crate::{Capabilities, Error};
use spec::{Contract, TensorMap};

mod boxes;
mod cuda;
#[cfg(feature = "cust")]
mod cust;
mod graph;
mod harness;
mod raw;
#[cfg(feature = "sim")]
mod sim;

pub use self::boxes::{Boxes, MapKind};
#[cfg(feature = "cust")]
pub use self::cust::{CustBuffer, CustDriver, CustEvent, CustKernel, CustStream};
pub use self::graph::RawGraph;
pub use self::harness::{Enqueue, Harness};
pub use self::raw::{RawBuffer, RawDriver, RawEvent, RawKernel, RawStream};
#[cfg(feature = "sim")]
pub use self::sim::{SimBuffer, SimDriver, SimKernel, SimStream};

/// Keeps [`Driver`] to this workspace: methods may be added to it.
#[doc(hidden)]
pub trait Sealed {}

/// What loads and launches kernels on a device. Kernels and streams belong to the driver that made them.
/// Sealed: the implementations are [`RawDriver`], `CustDriver` and `SimDriver`.
///
/// Addresses are device addresses, in 64 bits. `load` does everything that a launch must not do: compile, opt
/// in to shared memory, allocate.
pub trait Driver: Send + Sync + Sealed {
    /// A kernel that is ready to launch.
    type Kernel: Send + Sync;
    /// An ordered queue of work.
    type Stream;

    /// The device's limits.
    fn capabilities(&self) -> &Capabilities;

    /// Compiles PTX text and makes its entry ready: finds it and opts in to its dynamic shared memory.
    ///
    /// # Errors
    /// The compiler's log, or the limit that the kernel exceeds.
    fn load(&self, ptx: &str, contract: &Contract) -> Result<Self::Kernel, Error>;

    /// Whether [`Driver::load_cubin`] does anything.
    fn takes_cubins(&self) -> bool {
        false
    }

    /// The same from machine code for exactly this device: nothing is compiled.
    ///
    /// # Errors
    /// Code for another device; [`Error::Unsupported`] where a driver takes PTX alone.
    ///
    /// # Safety
    /// - `cubin` is what NVIDIA's assembler wrote, unchanged: the driver is not told its length and believes
    ///   what stands in it.
    unsafe fn load_cubin(&self, _cubin: &[u8], contract: &Contract) -> Result<Self::Kernel, Error> {
        Err(Error::unsupported(
            format_args!("machine code of {}", contract.symbol),
            "this driver takes PTX alone",
        ))
    }

    /// What Hopper's copy engine is told of a tensor, as a part of a kernel's parameters. Touches no device,
    /// and allocates nothing.
    ///
    /// # Errors
    /// The driver's; [`Error::Unsupported`] where it encodes none, which
    /// [`Capabilities::tensor_maps`] says before.
    fn tensor_map(&self, _: &Boxes) -> Result<TensorMap, Error> {
        Err(Error::unsupported("tensor maps", "this driver encodes none"))
    }

    /// Enqueues `grid` blocks of `kernel` on `stream`: no allocation, no synchronisation. `params` is its one
    /// parameter, passed by value.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// - `kernel` is one that this driver loaded, from PTX that does what its entry promises, and stays
    ///   loaded until it has run.
    /// - `stream` is a stream of this driver's context.
    /// - `params` are bytes of the kernel's parameter type.
    /// - The memory that they point to is this device's, large enough, and stays until the kernel has run.
    /// - Nothing else writes what the kernel reads, or touches what it writes, while it runs.
    unsafe fn launch(
        &self,
        kernel: &Self::Kernel,
        grid: [u32; 3],
        params: &[u8],
        stream: &Self::Stream,
    ) -> Result<(), Error>;
}
