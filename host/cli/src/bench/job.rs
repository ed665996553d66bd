//! Measurements, round by round.
use super::measure::{Bench, Timing};
use super::statistics::{Times, quantile};
use super::suite::{Suites, Workload};
use crate::console::Console;
use crate::error::Error;
use crate::nvml::Watch;
use clap::ValueEnum;
use ferroflash::Attention;
use ferroflash::driver::RawDriver;
use reference::Random;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use std::time::Instant;

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum TimingChoice {
    /// Cold for serving shapes and for forward shapes of 0.2 TFLOP or more; hot for other forward shapes
    #[default]
    Auto,
    /// Flush the L2 cache before each launch
    Cold,
    /// Let the caches keep the content that the previous launch left
    Hot,
    /// Measure both
    Both,
}

/// One shape with one timing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub suite: String,
    pub shape: String,
    pub entry: String,
    pub timing: String,
    #[serde(flatten)]
    pub times: Times,
    pub tflops: f64,
    pub gb_per_s: f64,
    /// Median clock of the SMs during the measurement, or `None` if the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<f64>,
}

/// One thing to measure.
pub(super) struct Job {
    suite: String,
    pub(super) workload: Rc<Workload>,
    timing: Timing,
    entry: &'static str,
    pub(super) rounds: Vec<Vec<f64>>,
    /// Clocks during the measurement, in MHz.
    clocks: Vec<u32>,
    pub(super) failure: Option<Error>,
}

/// Returns the jobs of all shapes.
pub(super) fn jobs(suites: Suites<Workload>, choice: TimingChoice) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (suite, workloads) in suites {
        for workload in workloads.into_iter().map(Rc::new) {
            let timings: &[Timing] = match choice {
                TimingChoice::Auto if !workload.cold && workload.flops < 2e11 => &[Timing::Hot],
                TimingChoice::Auto | TimingChoice::Cold => &[Timing::Cold],
                TimingChoice::Hot => &[Timing::Hot],
                TimingChoice::Both => &[Timing::Cold, Timing::Hot],
            };
            let job = |timing: &Timing| {
                let (suite, workload, timing) = (suite.clone(), Rc::clone(&workload), *timing);
                Job { suite, workload, timing, entry: "", rounds: vec![], clocks: vec![], failure: None }
            };
            jobs.extend(timings.iter().map(job));
        }
    }
    jobs
}

/// Measures every job once per round, while there is time. Returns the host time of a launch, p50 and p90.
/// The host time comes from the first job without a KV cache that launches, or from the first job that
/// launches if every job has a KV cache.
pub(super) fn rounds(
    attention: &Attention<RawDriver>,
    jobs: &mut [Job],
    rounds: u8,
    in_time: &dyn Fn() -> bool,
    watch: &Watch,
    console: &Console,
) -> Option<(f64, f64)> {
    let mut random = Random::new(1);
    let bar = console.progress("bench", jobs.len() * usize::from(rounds));
    let [first, then] = [false, true].map(|cold| jobs.iter().filter(move |job| job.workload.cold == cold));
    let mut all = first.chain(then).take_while(|_| in_time());
    let overhead = all.find_map(|job| job.overhead(attention).ok());
    for _ in 0..rounds {
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        random.shuffle(&mut order);
        for job in order.into_iter().take_while(|_| in_time()) {
            let job = &mut jobs[job];
            if job.failure.is_none() {
                bar.set_message(job.label());
                job.failure = job.round(attention, watch).err().map(Error::from);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    overhead
}

impl Job {
    /// Returns the job's label in reports.
    pub(super) fn label(&self) -> String {
        format!("{}: {}, {}", self.suite, self.workload.label, self.timing.name())
    }

    fn overhead(&self, attention: &Attention<RawDriver>) -> Result<(f64, f64), ferroflash::Error> {
        Bench::new(attention, &*self.workload.work())?.overhead()
    }

    /// Measures the job once more.
    fn round(&mut self, attention: &Attention<RawDriver>, watch: &Watch) -> Result<(), ferroflash::Error> {
        let work = self.workload.work();
        let bench = Bench::new(attention, &*work)?;
        self.entry = bench.entry();
        let begin = Instant::now();
        self.rounds.push(bench.round(self.timing)?);
        self.clocks.extend(watch.since(begin));
        Ok(())
    }

    /// Returns the row of the report, or `None` without samples.
    pub(super) fn row(&self) -> Option<Row> {
        let times = Times::of(&self.rounds)?;
        let mut clocks: Vec<_> = self.clocks.iter().copied().map(f64::from).collect();
        clocks.sort_by(f64::total_cmp);
        Some(Row {
            suite: self.suite.clone(),
            shape: self.workload.label.clone(),
            entry: self.entry.into(),
            timing: self.timing.name().into(),
            times,
            tflops: self.workload.flops / times.p50_us / 1e6,
            gb_per_s: self.workload.least_bytes / times.p50_us / 1e3,
            sm_mhz: quantile(&clocks, 0.5),
        })
    }
}
