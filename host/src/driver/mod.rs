//! Drivers run kernels: CUDA through `cust`, CUDA through raw handles, or the simulator.
//!
//! | driver | context, streams and memory | to build |
//! |---|---|---|
//! | [`RawDriver`] | the caller's, as raw handles | nothing |
//! | `CustDriver` | `cust`'s (feature `cust`) | a CUDA installation |
//! | `SimDriver` | the simulator's, on the CPU (feature `sim`) | nothing |
//!
//! [`Attention`](crate::Attention) calls only a [`Driver`]. Tests and tools allocate, copy and measure with
//! `Harness` (feature `testing`, which `sim` includes).
use crate::{Capabilities, Error};
use spec::{Contract, TensorMap};

mod cuda;
#[cfg(feature = "cust")]
mod cust;
mod graph;
#[cfg(feature = "testing")]
mod harness;
mod map;
mod raw;
#[cfg(feature = "sim")]
mod sim;

#[cfg(feature = "cust")]
pub use self::cust::{CustDriver, CustKernel, CustStream};
pub use self::graph::RawGraph;
#[cfg(all(feature = "cust", feature = "testing"))]
pub use self::harness::{CustBuffer, CustEvent};
#[cfg(feature = "testing")]
pub use self::harness::{Enqueue, Harness, RawBuffer, RawEvent};
pub use self::map::{MapDescription, MapKind};
pub use self::raw::{RawDriver, RawKernel, RawStream};
#[cfg(feature = "sim")]
pub use self::sim::{SimBuffer, SimDriver, SimKernel, SimStream};

/// Seals [`Driver`]: only this workspace implements it, so new methods may be added.
#[doc(hidden)]
pub trait Sealed {}

/// Loads and launches kernels on a device. Kernels and streams belong to the driver that made them. The trait
/// is sealed: its implementations are [`RawDriver`], `CustDriver` and `SimDriver`.
///
/// Addresses are device addresses, in 64 bits. `load` does everything that a launch must not do: compile, opt
/// in to shared memory, allocate.
pub trait Driver: Send + Sync + Sealed {
    /// A kernel that is ready to launch.
    type Kernel: Send + Sync;
    /// A stream: an ordered queue of work.
    type Stream;

    /// Returns the device's limits.
    fn capabilities(&self) -> &Capabilities;

    /// Compiles PTX, finds the kernel `contract.symbol`, and opts in to its dynamic shared memory.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] with the compiler's log, or [`Error::Unsupported`] with the limit that the
    /// kernel exceeds.
    fn load(&self, ptx: &str, contract: &Contract) -> Result<Self::Kernel, Error>;

    /// Returns whether the driver loads machine code ([`Driver::load_cubin`]).
    fn takes_cubins(&self) -> bool {
        false
    }

    /// Loads machine code for exactly this device. Compiles nothing.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the code is for another device, or [`Error::Unsupported`] if the driver
    /// accepts only PTX.
    ///
    /// # Safety
    /// - `cubin` is the unchanged output of NVIDIA's assembler. CUDA does not know the length of `cubin`: it
    ///   trusts the file's headers.
    unsafe fn load_cubin(&self, _cubin: &[u8], contract: &Contract) -> Result<Self::Kernel, Error> {
        Err(Error::unsupported(
            format_args!("machine code of {}", contract.symbol),
            "this driver takes PTX only",
        ))
    }

    /// Encodes the tensor map (`CUtensorMap`) of a tensor, which is part of a kernel's parameters. Does not
    /// access the device, and allocates nothing.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`], which names the wrong field, or [`Error::Driver`] if the driver fails, or
    /// [`Error::Unsupported`] if the driver encodes no tensor maps ([`Capabilities::tensor_maps`] is false).
    fn tensor_map(&self, _: &MapDescription) -> Result<TensorMap, Error> {
        Err(Error::unsupported("tensor maps", "this driver encodes no tensor maps"))
    }

    /// Enqueues `grid` blocks of `kernel` on `stream`. Allocates nothing and does not synchronise. `params`
    /// are the bytes of the kernel's one parameter.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - This driver loaded `kernel`, from PTX that keeps the promises of its contract. The kernel stays
    ///   loaded until it has run.
    /// - `stream` belongs to this driver's context.
    /// - `params` are the bytes of a value of the kernel's parameter type.
    /// - The memory that `params` points to is memory of this device, is large enough, and lives until the
    ///   kernel has run.
    /// - If the kernel is dependent ([`Contract::is_dependent`]), the launch before it in the stream writes
    ///   only memory that the kernel reads behind its wait.
    /// - While the kernel runs, nothing else writes the kernel's inputs, and nothing else reads or writes the
    ///   kernel's outputs.
    unsafe fn launch(
        &self,
        kernel: &Self::Kernel,
        grid: [u32; 3],
        params: &[u8],
        stream: &Self::Stream,
    ) -> Result<(), Error>;
}
