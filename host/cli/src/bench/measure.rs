//! Measuring launches on a GPU.
use super::statistics::quantile;
use ferroflash::driver::RawDriver;
use ferroflash::driver::{Harness, RawBuffer};
use ferroflash::{Attention, Error};
use reference::{OnDevice, Ready, Work};
use serde::Serialize;
use std::time::Instant;

/// State of the L2 cache when a launch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Timing {
    /// No tensor of the problem is in the cache. The program overwrites a buffer of twice the L2 cache before
    /// each launch, outside the measured time.
    Cold,
    /// The cache has the content that the previous launch left. Many launches run in one CUDA graph.
    Hot,
}

impl Timing {
    /// Returns the name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Timing::Cold => "cold",
            Timing::Hot => "hot",
        }
    }
}

/// Total time of the samples of one round, in microseconds.
const ROUND_US: f64 = 60_000.0;
const LAUNCHES: std::ops::RangeInclusive<f64> = 5.0..=1000.0;

/// One problem in a GPU's memory, ready to launch.
pub(super) struct Bench<'a> {
    attention: &'a Attention<RawDriver>,
    /// This field must be the first, so that it is dropped first: its drop waits for the stream.
    ready: Ready<'a, RawDriver>,
    flush: RawBuffer,
}

impl<'a> Bench<'a> {
    /// Copies inputs to the device, plans, loads the kernel, and launches it once.
    pub(super) fn new(attention: &'a Attention<RawDriver>, work: &'a dyn Work) -> Result<Self, Error> {
        let ready = OnDevice::new(attention, work, None)?.ready()?;
        let flush = attention.driver().allocate((2 * attention.capabilities().l2_bytes as usize).max(1))?;
        ready.launch()?;
        attention.driver().synchronize(ready.stream())?;
        Ok(Bench { attention, ready, flush })
    }

    /// Returns the selected kernel.
    pub(super) fn entry(&self) -> &'static str {
        self.ready.kernel().symbol
    }

    /// Runs the launches of one round, and returns the microseconds of each.
    pub(super) fn round(&self, timing: Timing) -> Result<Vec<f64>, Error> {
        match timing {
            Timing::Cold => {
                let once = self.cold(5)?.into_iter().fold(f64::MAX, f64::min);
                self.cold((ROUND_US / once).clamp(*LAUNCHES.start(), *LAUNCHES.end()) as usize)
            }
            Timing::Hot => self.hot(),
        }
    }

    /// Returns the host time of one launch in microseconds, p50 and p90. This time contains no wait for the
    /// device.
    pub(super) fn overhead(&self) -> Result<(f64, f64), Error> {
        // The number of launches that the driver queues without a wait.
        const LAUNCHES: u32 = 100;
        let (driver, stream) = (self.attention.driver(), self.ready.stream());
        let mut times = Vec::new();
        for _ in 0..50 {
            driver.synchronize(stream)?;
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                self.ready.launch()?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(LAUNCHES));
        }
        driver.synchronize(stream)?;
        times.sort_by(f64::total_cmp);
        Ok((quantile(&times, 0.5).unwrap_or(f64::NAN), quantile(&times, 0.9).unwrap_or(f64::NAN)))
    }

    fn cold(&self, launches: usize) -> Result<Vec<f64>, Error> {
        let (driver, stream) = (self.attention.driver(), self.ready.stream());
        let mut marks = Vec::with_capacity(launches);
        for _ in 0..launches {
            // Enqueues all launches while the device still flushes, so that the measured time contains no gap
            // of the host. SAFETY: the buffer lives as long as `self`, and nothing else uses it.
            unsafe { driver.enqueue_fill(&self.flush, 0, stream)? };
            let start = driver.record(stream)?;
            self.ready.launch()?;
            marks.push((start, driver.record(stream)?));
        }
        marks.iter().map(|(start, end)| Ok(driver.elapsed(start, end)?.as_secs_f64() * 1e6)).collect()
    }

    fn hot(&self) -> Result<Vec<f64>, Error> {
        const REPLAYS: usize = 10;
        let (driver, stream) = (self.attention.driver(), self.ready.stream());
        let replay = |launches: usize, replays: usize| {
            let graph = driver.capture(stream, || (0..launches).try_for_each(|_| self.ready.launch()))?;
            let mut times = Vec::with_capacity(replays);
            // The first replay warms caches and clocks.
            for sample in 0..=replays {
                let time = driver.time(stream, &mut |stream| {
                    // SAFETY: the graph contains the launches of `ready`, into its outputs. This function
                    // waits for the graph before it drops the graph.
                    unsafe { driver.replay(&graph, stream) }
                })?;
                if sample > 0 {
                    times.push(time.as_secs_f64() * 1e6 / launches as f64);
                }
            }
            Ok(times)
        };
        let once: f64 = replay(20, 1)?.first().copied().unwrap_or(1.0);
        replay((ROUND_US / once / REPLAYS as f64).clamp(*LAUNCHES.start(), *LAUNCHES.end()) as usize, REPLAYS)
    }
}
