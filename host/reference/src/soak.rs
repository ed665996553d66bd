//! Repeated launches from several threads and streams.
use super::work::{OnDevice, Work, Written};
use ferroflash::driver::Harness;
use ferroflash::{Attention, Error};

/// One round of launches of one kernel on one problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soak {
    /// Number of launches of all threads together.
    pub launches: usize,
    /// A thread waits for its streams after this number of launches. [`Soak::AT_THE_END`] waits once, after
    /// the last launch.
    pub every: usize,
    /// Threads that launch concurrently.
    pub threads: usize,
    /// Streams of each thread.
    pub streams: usize,
}

impl Soak {
    /// A value of [`Soak::every`]: each thread waits once, after the last launch.
    pub const AT_THE_END: usize = usize::MAX;

    /// Runs the round, and returns the number of launches whose result differs from `expected` in any bit.
    /// Each thread has its own inputs, outputs and streams.
    pub fn run<D: Harness>(
        self,
        attention: &Attention<D>,
        work: &dyn Work,
        config: &str,
        expected: &Written,
    ) -> Result<usize, Error> {
        let share =
            |thread: usize| self.launches / self.threads + usize::from(thread < self.launches % self.threads);
        let launch = |thread: usize| {
            let streams = (0..self.streams).map(|_| OnDevice::new(attention, work, Some(config)));
            OnDevice::soak(&streams.collect::<Result<Vec<_>, _>>()?, expected, share(thread), self.every)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || launch(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a soak does not panic")).sum()
        })
    }
}

impl std::fmt::Display for Soak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Soak { launches, every, threads, streams } = self;
        write!(f, "{launches} launches from {threads} threads with {streams} streams each, waiting ")?;
        match *every {
            Self::AT_THE_END => write!(f, "at the end"),
            1 => write!(f, "after each"),
            every => write!(f, "after every {every}"),
        }
    }
}
