//! A driver for tests and tools, with memory, streams, graphs and time measurements.
use super::Driver;
use super::cuda::driver;
use super::graph::Exec;
use crate::Error;
use libcuda::CUstream;
use std::time::Duration;

#[cfg(feature = "cust")]
mod cust;
mod raw;

#[cfg(feature = "cust")]
pub use self::cust::{CustBuffer, CustEvent};
pub use raw::{RawBuffer, RawEvent};

/// A function that enqueues some work. Every call enqueues the work again.
pub type Enqueue<'a> = dyn FnMut() -> Result<(), Error> + 'a;

/// A [`Driver`] with its own memory, streams and events. Tests, the program `ferroflash`, and programs that
/// try a kernel in the simulator use it. Programs that embed attention get memory, streams and events from
/// `cust`, `cudarc` or CUDA.
pub trait Harness: Driver {
    /// Device memory, freed when dropped.
    type Buffer;
    /// An event, which marks a point in a stream.
    type Event;

    /// Creates a stream that does not synchronise with any other stream.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    fn stream(&self) -> Result<Self::Stream, Error>;

    /// Returns the number of bytes of device memory that all programs use, or `None` if the driver does not
    /// know.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    fn memory_in_use(&self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Allocates uninitialised device memory, at least 16-byte aligned.
    ///
    /// # Errors
    /// Returns [`Error::Driver`], for instance if the device is out of memory.
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer, Error>;

    /// Allocates device memory with a name, which the simulator's reports show.
    ///
    /// # Errors
    /// Returns the errors of [`Harness::allocate`].
    fn allocate_named(&self, _name: &str, bytes: usize) -> Result<Self::Buffer, Error> {
        self.allocate(bytes)
    }

    /// Returns the device address of a buffer's first byte.
    fn address(&self, buffer: &Self::Buffer) -> u64;

    /// Copies `data` to the start of `buffer`, and waits until the copy is done.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if `data` is longer than the buffer, or [`Error::Driver`] if the driver
    /// fails.
    fn upload(&self, buffer: &mut Self::Buffer, data: &[u8]) -> Result<(), Error> {
        self.upload_at(buffer, 0, data)
    }

    /// Copies `data` to byte `at` of `buffer`, and waits until the copy is done.
    ///
    /// # Errors
    /// Returns the errors of [`Harness::upload`].
    fn upload_at(&self, buffer: &mut Self::Buffer, at: usize, data: &[u8]) -> Result<(), Error>;

    /// Copies the start of `buffer` to `data`, and waits until the copy is done. The copy is not ordered with
    /// work on streams: [synchronise](Harness::synchronize) first.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if `data` is longer than the buffer, or [`Error::Driver`] if the driver
    /// fails.
    fn download(&self, buffer: &Self::Buffer, data: &mut [u8]) -> Result<(), Error> {
        self.download_at(buffer, 0, data)
    }

    /// Copies `buffer` from byte `at` on to `data`, like [`Harness::download`].
    ///
    /// # Errors
    /// Returns the errors of [`Harness::download`].
    fn download_at(&self, buffer: &Self::Buffer, at: usize, data: &mut [u8]) -> Result<(), Error>;

    /// Sets every byte of `buffer`, and waits for the end.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    fn fill(&self, buffer: &mut Self::Buffer, byte: u8) -> Result<(), Error>;

    /// Captures the launches of `work` on `stream` as a CUDA graph and calls `then` with a function that
    /// enqueues the graph. `then` may call this function any number of times. Load the kernels before. A
    /// driver without graphs (the simulator) calls `work` each time instead.
    ///
    /// # Errors
    /// Returns the errors of `work` and `then`, or [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - Each time that `then` enqueues the launches of `work`, the preconditions of these launches hold
    ///   until the launches have run.
    /// - `stream` is a stream of this driver's context, and `then` waits until its own work on `stream` is
    ///   done.
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
    /// Returns [`Error::Driver`] if the driver or the work fails.
    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error>;

    /// Records an event behind the work that is enqueued on `stream` now.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Error>;

    /// Waits for `end`, and returns the device time between two events.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    fn elapsed(&self, start: &Self::Event, end: &Self::Event) -> Result<Duration, Error>;

    /// Returns the device time of the launches of `work` on `stream`.
    ///
    /// # Errors
    /// Returns the errors of `work`, or [`Error::Driver`] if the driver fails.
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

/// Implements [`Harness::with_graph`] for a live stream of the current context.
///
/// # Safety
/// See [`Harness::with_graph`].
unsafe fn with_graph(
    stream: CUstream,
    work: impl FnOnce() -> Result<(), Error>,
    then: &mut dyn FnMut(&mut Enqueue<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let graph = Exec::capture(stream, work)?;
    // SAFETY: the handles live, and the caller promises the rest.
    then(&mut || driver("cuGraphLaunch", unsafe { libcuda::cuGraphLaunch(graph.0, stream) }))
}

/// Checks that a copy of `data` bytes at byte `at` ends within its buffer.
pub(super) fn fits(buffer: usize, at: usize, data: usize) -> Result<(), Error> {
    if at.checked_add(data).is_some_and(|end| end <= buffer) {
        return Ok(());
    }
    let left = buffer.saturating_sub(at);
    let expected =
        format_args!("the buffer holds {left} bytes from this byte on; copy fewer, or allocate more");
    Err(Error::invalid("data", format_args!("{data} bytes at byte {at}"), expected))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::driver::SimDriver;

    #[test]
    fn copies_stay_in_their_buffer() -> Result<(), Error> {
        let driver = SimDriver::new("l4")?;
        let mut buffer = driver.allocate(8)?;
        driver.upload(&mut buffer, &[1; 8])?;
        driver.upload_at(&mut buffer, 5, &[2, 3])?;
        let mut held = [0; 8];
        driver.download(&buffer, &mut held)?;
        assert_eq!(held, [1, 1, 1, 1, 1, 2, 3, 1]);
        driver.download_at(&buffer, 5, &mut held[..2])?;
        assert_eq!(held[..2], [2, 3]);
        for (at, bytes, left) in [(0, 9, 8), (6, 3, 2), (9, 0, 0), (usize::MAX, 1, 0)] {
            let mut data = vec![0; bytes];
            let [to, from] =
                [driver.upload_at(&mut buffer, at, &data), driver.download_at(&buffer, at, &mut data)];
            for error in [to, from].map(|copied| copied.expect_err("too many").to_string()) {
                assert!(error.contains(&format!("the buffer holds {left}")), "{at} and {bytes}: {error}");
            }
        }
        Ok(())
    }
}
