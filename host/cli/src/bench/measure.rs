//! Measuring launches on a GPU.
use super::statistics::quantile;
use ferroflash::{Attention, Driver, Error, Forward, Plan, RawBuffer, RawDriver, RawStream, Workspace};
use reference::Memory;
use serde::Serialize;
use std::time::Instant;

/// What the caches hold when a launch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Timing {
    /// Nothing of the problem: a buffer of twice the L2 cache is written before each launch, outside of the
    /// time.
    Cold,
    /// What the launch before left: many launches in one CUDA graph.
    Hot,
}

impl Timing {
    /// As reports name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Timing::Cold => "cold",
            Timing::Hot => "hot",
        }
    }
}

/// Time that samples of one round take together, in microseconds.
const ROUND_US: f64 = 60_000.0;
const LAUNCHES: std::ops::RangeInclusive<f64> = 5.0..=1000.0;

/// One problem in a GPU's memory, ready to launch.
pub(super) struct Bench<'a> {
    attention: &'a Attention<RawDriver>,
    stream: RawStream,
    flush: RawBuffer,
    forward: Forward<'static>,
    plan: Plan,
    /// What `forward` points to.
    _buffers: Vec<RawBuffer>,
}

impl<'a> Bench<'a> {
    /// Copies inputs to the device, plans, and loads the kernel.
    pub(super) fn new(attention: &'a Attention<RawDriver>, memory: &Memory) -> Result<Self, Error> {
        let driver = attention.driver();
        let upload = |bits: &Vec<u16>| {
            let bytes: Vec<u8> = bits.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let mut buffer = driver.allocate(bytes.len())?;
            driver.upload(&mut buffer, &bytes)?;
            Ok(buffer)
        };
        let mut buffers = memory.buffers.iter().map(upload).collect::<Result<Vec<_>, Error>>()?;
        let inputs: Vec<_> = buffers.iter().map(|buffer| driver.address(buffer)).collect();
        let (o, lse) = (
            memory.o.span() * memory.problem.dtype.bytes(),
            memory.lse_shape().iter().product::<usize>() * 4,
        );
        let outputs = [driver.allocate(o)?, driver.allocate(lse)?];
        let [o, lse] = [&outputs[0], &outputs[1]].map(|buffer| driver.address(buffer));
        buffers.extend(outputs);
        let mut forward = memory.forward(&inputs, o, lse);
        let plan = attention.plan_with(&forward, u64::MAX)?;
        let bytes = plan.workspace_bytes();
        if bytes > 0 {
            let buffer = driver.allocate(bytes as usize)?;
            forward = forward.workspace(Workspace { address: driver.address(&buffer), bytes });
            buffers.push(buffer);
        }
        attention.load(&plan)?;
        let flush = driver.allocate((2 * attention.capabilities().l2_bytes as usize).max(1))?;
        let bench = Bench { attention, stream: driver.stream()?, flush, forward, plan, _buffers: buffers };
        bench.launch()?;
        bench.attention.driver().synchronize(&bench.stream)?;
        Ok(bench)
    }

    /// The kernel that was chosen.
    pub(super) fn entry(&self) -> &'static str {
        self.plan.contract().symbol
    }

    /// Microseconds of launches.
    pub(super) fn round(&self, timing: Timing) -> Result<Vec<f64>, Error> {
        match timing {
            Timing::Cold => {
                let once = self.cold(5)?.into_iter().fold(f64::MAX, f64::min);
                self.cold((ROUND_US / once).clamp(*LAUNCHES.start(), *LAUNCHES.end()) as usize)
            }
            Timing::Hot => self.hot(),
        }
    }

    /// Host microseconds of one launch, the device's own time not waited for: p50 and p90.
    pub(super) fn overhead(&self) -> Result<(f64, f64), Error> {
        // As many as the driver's queue takes without waiting.
        const LAUNCHES: u32 = 100;
        let mut times = Vec::new();
        for _ in 0..50 {
            self.attention.driver().synchronize(&self.stream)?;
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                self.launch()?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(LAUNCHES));
        }
        self.attention.driver().synchronize(&self.stream)?;
        times.sort_by(f64::total_cmp);
        Ok((quantile(&times, 0.5).unwrap_or(f64::NAN), quantile(&times, 0.9).unwrap_or(f64::NAN)))
    }

    fn launch(&self) -> Result<(), Error> {
        // SAFETY: the buffers live as long as this, which waits for its stream before it is dropped; nobody
        // else uses them.
        unsafe { self.attention.launch(&self.plan, &self.forward, &self.stream) }
    }

    fn cold(&self, launches: usize) -> Result<Vec<f64>, Error> {
        let driver = self.attention.driver();
        let mut marks = Vec::with_capacity(launches);
        for _ in 0..launches {
            // All is enqueued while the device is still flushing: no gap of the host's falls into the time.
            // SAFETY: the buffer lives as long as this, and nobody else uses it.
            unsafe { driver.enqueue_fill(&self.flush, 0, &self.stream)? };
            let start = driver.record(&self.stream)?;
            self.launch()?;
            marks.push((start, driver.record(&self.stream)?));
        }
        marks.iter().map(|(start, end)| Ok(driver.elapsed(start, end)?.as_secs_f64() * 1e6)).collect()
    }

    fn hot(&self) -> Result<Vec<f64>, Error> {
        const REPLAYS: usize = 10;
        let driver = self.attention.driver();
        let replay = |launches: usize, replays: usize| {
            let graph = driver.capture(&self.stream, || (0..launches).try_for_each(|_| self.launch()))?;
            let mut times = Vec::with_capacity(replays);
            // The first brings the caches and clocks to where they stay.
            for sample in 0..=replays {
                let time = driver.time(&self.stream, &mut |stream| {
                    // SAFETY: as `launch`; this waits for the graph before it is dropped.
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

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // What fails here has failed before, too.
        let _ = self.attention.driver().synchronize(&self.stream);
    }
}

/// SM clock, memory clock, power and temperature now, from the driver's own tool; why not, where that is not
/// possible.
pub(super) fn clocks(ordinal: u32) -> Result<String, String> {
    let fields = "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu";
    let ordinal = ordinal.to_string();
    let args = [fields, "--format=csv,noheader", "-i", &ordinal];
    let output = std::process::Command::new("nvidia-smi").args(args).output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => Err(format!("nvidia-smi: {}", String::from_utf8_lossy(&output.stdout).trim())),
        Err(error) => Err(format!("nvidia-smi: {error}")),
    }
}
