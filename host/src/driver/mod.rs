//! What runs kernels: CUDA through `cust`, CUDA through raw handles, or the simulator.
use crate::{Capabilities, Error};
use spec::{Contract, TensorMap};
use std::time::Duration;

mod boxes;
mod cuda;
#[cfg(feature = "cust")]
mod cust;
mod graph;
mod raw;
#[cfg(feature = "sim")]
mod sim;

pub use self::boxes::{Boxes, MapKind};
#[cfg(feature = "cust")]
pub use self::cust::{CustBuffer, CustDriver, CustEvent, CustKernel, CustStream};
pub use self::graph::RawGraph;
pub use self::raw::{RawBuffer, RawDriver, RawEvent, RawKernel, RawStream};
#[cfg(feature = "sim")]
pub use self::sim::{SimBuffer, SimDriver, SimKernel, SimStream};

/// What enqueues some work: each time that it is called, once more.
pub type Enqueue<'a> = dyn FnMut() -> Result<(), Error> + 'a;

/// Something that runs kernels on a device. Its kernels, buffers and streams belong to it alone.
///
/// Addresses are the device's, in 64 bits. `load` does all that a launch must not: compile, opt in to shared
/// memory, allocate.
pub trait Driver: Send + Sync {
    /// A kernel that is ready to launch.
    type Kernel: Send + Sync;
    /// Device memory, freed when dropped.
    type Buffer;
    /// An ordered queue of work.
    type Stream;
    /// A point in a stream's work.
    type Event;

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

    /// A new stream, ordered with no other.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&self) -> Result<Self::Stream, Error>;

    /// Device memory that is in use, by this program and others, in bytes. `None` where the driver cannot
    /// say.
    ///
    /// # Errors
    /// The driver's.
    fn memory_in_use(&self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Uninitialised device memory, at least 16-byte aligned.
    ///
    /// # Errors
    /// Out of memory.
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer, Error>;

    /// The same with a name, for drivers that can say in which buffer something went wrong.
    ///
    /// # Errors
    /// Out of memory.
    fn allocate_named(&self, _name: &str, bytes: usize) -> Result<Self::Buffer, Error> {
        self.allocate(bytes)
    }

    /// Device address of a buffer's first byte.
    fn address(&self, buffer: &Self::Buffer) -> u64;

    /// Copies `data` to the start of `buffer`, and waits for it.
    ///
    /// # Errors
    /// More data than the buffer holds; the driver's.
    fn upload(&self, buffer: &mut Self::Buffer, data: &[u8]) -> Result<(), Error> {
        self.upload_at(buffer, 0, data)
    }

    /// The same from byte `at` of the buffer on.
    ///
    /// # Errors
    /// Those of [`Driver::upload`].
    fn upload_at(&self, buffer: &mut Self::Buffer, at: usize, data: &[u8]) -> Result<(), Error>;

    /// Copies the start of `buffer` to `data`, and waits for it. Work on streams must have been waited for.
    ///
    /// # Errors
    /// More data than the buffer holds; the driver's.
    fn download(&self, buffer: &Self::Buffer, data: &mut [u8]) -> Result<(), Error>;

    /// Sets every byte of `buffer`, and waits for it.
    ///
    /// # Errors
    /// The driver's.
    fn fill(&self, buffer: &mut Self::Buffer, byte: u8) -> Result<(), Error>;

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

    /// Captures what `work` enqueues on `stream` as a CUDA graph, of which nothing runs yet, and hands `then`
    /// what enqueues the graph, as often as it likes. Kernels must be loaded before. A driver that has no
    /// graphs, as the simulator, enqueues `work` anew each time.
    ///
    /// # Errors
    /// Those of `work` and `then`, and the driver's.
    ///
    /// # Safety
    /// - What makes the launches of `work` safe holds each time that `then` enqueues them, until they have
    ///   run.
    /// - `stream` is a stream of this driver's context, and `then` waits for what it has enqueued there.
    unsafe fn with_graph(
        &self,
        stream: &Self::Stream,
        work: &mut Enqueue<'_>,
        then: &mut dyn FnMut(&mut Enqueue<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _ = stream;
        then(work)
    }

    /// Waits until all work on `stream` is done.
    ///
    /// # Errors
    /// Also those of the work that was waited for.
    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error>;

    /// Marks the present end of `stream`'s work.
    ///
    /// # Errors
    /// The driver's.
    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Error>;

    /// Device time between two marks; waits for the second.
    ///
    /// # Errors
    /// The driver's.
    fn elapsed(&self, start: &Self::Event, end: &Self::Event) -> Result<Duration, Error>;

    /// Device time of `work`, which enqueues on `stream`.
    ///
    /// # Errors
    /// Those of `work`, and the driver's.
    fn time(
        &self,
        stream: &Self::Stream,
        work: &mut dyn FnMut(&Self::Stream) -> Result<(), Error>,
    ) -> Result<Duration, Error> {
        let start = self.record(stream)?;
        work(stream)?;
        let end = self.record(stream)?;
        self.elapsed(&start, &end)
    }
}

/// Checks that a copy from or to byte `at` on stays in its buffer.
fn fits(buffer: usize, at: usize, data: usize) -> Result<(), Error> {
    if at.checked_add(data).is_some_and(|end| end <= buffer) {
        return Ok(());
    }
    let left = buffer.saturating_sub(at);
    Err(Error::invalid("data", format_args!("{data} bytes"), format_args!("the buffer holds {left}")))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_in_their_buffer() -> Result<(), Error> {
        let driver = SimDriver::new("l4")?;
        let mut buffer = driver.allocate(8)?;
        driver.upload(&mut buffer, &[1; 8])?;
        driver.upload_at(&mut buffer, 5, &[2, 3])?;
        let mut held = [0; 8];
        driver.download(&buffer, &mut held)?;
        assert_eq!(held, [1, 1, 1, 1, 1, 2, 3, 1]);
        for (at, bytes, left) in [(0, 9, 8), (6, 3, 2), (9, 0, 0), (usize::MAX, 1, 0)] {
            let error = driver.upload_at(&mut buffer, at, &vec![0; bytes]).expect_err("too many").to_string();
            assert!(error.contains(&format!("the buffer holds {left}")), "{at} and {bytes}: {error}");
        }
        Ok(())
    }
}
