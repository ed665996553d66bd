//! What tests and tools do with a driver beside launches: memory, streams, graphs, time.
use super::Driver;
use crate::Error;
use std::time::Duration;

/// Enqueues some work: each call enqueues it once more.
pub type Enqueue<'a> = dyn FnMut() -> Result<(), Error> + 'a;

/// A [`Driver`] with memory, streams and events of its own: for tests, for the program `ferroflash`, and to try a
/// kernel in the simulator. Programs that embed attention have these from `cust`, `cudarc` or CUDA.
pub trait Harness: Driver {
    /// Device memory, freed when dropped.
    type Buffer;
    /// A point in a stream's work.
    type Event;

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
    /// Those of [`Harness::upload`].
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
pub(super) fn fits(buffer: usize, at: usize, data: usize) -> Result<(), Error> {
    if at.checked_add(data).is_some_and(|end| end <= buffer) {
        return Ok(());
    }
    let left = buffer.saturating_sub(at);
    Err(Error::invalid("data", format_args!("{data} bytes"), format_args!("the buffer holds {left}")))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::SimDriver;

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
