//! `ferroflash bench`: measures kernels on this GPU.
mod against;
mod first_call;
mod job;
mod measure;
mod plot;
mod statistics;
pub(super) mod suite;

use super::console::Console;
use super::error::Error;
use super::files;
use super::options::{DeviceOptions, ONLY_GPU};
use super::{ended, nvml};
use against::Comparison;
use ferroflash::Attention;
use ferroflash::driver::RawDriver;
use ferroflash::tuning::Tuning;
use job::{Job, Row, TimingChoice, jobs};
use serde::Serialize;
use statistics::Times;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measure kernels on the GPU: times, TFLOP/s, GB/s, and the launch time of the host.
///
/// Suites cover prefill and serving: decode, also of unequal lengths, paged KV caches, varlen prompts,
/// append, merge. bench/compare.py and bench/serving.py measure the same suites beside other libraries
/// (bench/README.md).
///
///   cold   before each launch the program overwrites twice the size of the L2 cache, outside
///          the measured time
///   hot    many launches in one CUDA graph; the time is divided by their number
///   GB/s   the fewest bytes that must cross the memory bus, divided by the time
///   noise  the distance between the medians of the rounds
#[derive(clap::Args)]
#[command(mut_arg("device", |arg| arg.help(ONLY_GPU)), mut_arg("profile", |arg| arg.hide(true)))]
#[command(
    verbatim_doc_comment,
    after_help = include_str!("bench/help.txt")
)]
pub(super) struct Args {
    /// Measure this suite: headline, prefill, extra, hopper, hopper-extra, decode, paged, ragged, mixed,
    /// chunked, mla, sparse, latents (MLA of eight bits), prefix, packed, append, merge, backward (in a build
    /// with the feature `training`), or a suite of --file. May be repeated [default: all].
    #[arg(long = "suite", value_name = "NAME")]
    suites: Vec<String>,
    /// Read the shapes from this file instead of the built-in suites.
    #[arg(long)]
    file: Option<PathBuf>,
    /// State of the GPU's caches when a launch begins.
    #[arg(long, value_enum, default_value_t)]
    timing: TimingChoice,
    /// Number of rounds over all shapes. Each round has a random order.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Start no measurement after N seconds. The report names the shapes that were not measured.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Write a plot of the throughput to this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Compare with an older report (--json). The command fails if a shape is slower by more than the noise
    /// of both reports.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Instead of kernels, measure the time from the start of a process to its first output, step by step.
    #[arg(long, conflicts_with_all = ["suites", "file", "svg", "against"])]
    first_call: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// The measurements.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    /// Clocks, power and temperature before and after, or the reason why they are unknown.
    clocks: [String; 2],
    /// Host time of one launch of the first forward shape, or of the first shape if there is no forward
    /// shape.
    launch_overhead_us: Option<Overhead>,
    rows: Vec<Row>,
    /// Shapes that --seconds left out.
    left_out: Vec<String>,
    /// Shapes that could not be measured, with the reason.
    failed: Vec<String>,
    against: Option<Comparison>,
}

#[derive(Clone, Copy, Serialize)]
struct Overhead {
    p50: f64,
    p90: f64,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let start = Instant::now();
    ended::listen();
    let ordinal = args.device.gpu("bench measures time")?;
    if args.first_call {
        return console.report(&first_call::run(start, ordinal)?, Ok(()));
    }
    let suites = suite::read(args.file.as_deref(), &args.suites)?;
    let before = args.against.as_deref().map(against::read).transpose()?;
    let mut jobs = jobs(suites, args.timing);
    let driver = RawDriver::primary(ordinal).map_err(|e| Error::NoDevice(e.to_string()))?;
    let attention = Attention::with_tuning(driver, Tuning::from_environment()?);
    let device = attention.capabilities().name.to_string();
    let gpu = nvml::Gpu::open(ordinal);
    let clocks = || gpu.as_ref().map_or_else(|why| format!("unknown: {why}"), |gpu| gpu.state().to_string());
    let clocks_before = clocks();
    let watch = nvml::Watch::new(gpu.as_ref().ok().map(Arc::clone));
    let budget = args.seconds.map(Duration::from_secs);
    let in_time = || !ended::asked() && budget.is_none_or(|budget| start.elapsed() < budget);
    let overhead = job::rounds(&attention, &mut jobs, args.rounds, &in_time, &watch, console);
    let Measured { rows, left_out, failed, result } = Measured::of(&jobs);
    // The report is printed before the comparison, which may fail.
    let against = before.map(|before| against::compare(&before, &device, &rows)).transpose();
    let (against, compared) = match against {
        Ok(against) => (against, Ok(())),
        Err(error) => (None, Err(error)),
    };
    let drawn = args.svg.as_deref().map_or(Ok(()), |path| {
        plot::svg(&device, &rows).and_then(|text| files::write_whole(path, text.as_bytes()))
    });
    let clocks = [clocks_before, clocks()];
    let launch_overhead_us = overhead.map(|(p50, p90)| Overhead { p50, p90 });
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device,
        clocks,
        launch_overhead_us,
        rows,
        left_out,
        failed,
        against,
    };
    let slower = match report
        .against
        .as_ref()
        .and_then(|a| a.regressions.first().map(|first| (a.regressions.len(), first)))
    {
        Some((count, first)) => Err(Error::Wrong(format!("{count} slower than before: {first}"))),
        None => Ok(()),
    };
    let measured = jobs.iter().filter(|job| job.rounds.len() == usize::from(args.rounds)).count();
    let early = ended::early(measured, jobs.len(), "shapes were measured in every round").map_or(Ok(()), Err);
    console.report(&report, slower.and(result).and(compared).and(drawn).and(early))
}

/// The results of the jobs. The report contains all measurements, even if a job failed.
struct Measured {
    rows: Vec<Row>,
    /// Shapes that were not measured, because the time was over.
    left_out: Vec<String>,
    failed: Vec<String>,
    result: Result<(), Error>,
}

impl Measured {
    fn of(jobs: &[Job]) -> Self {
        let unmeasured = jobs.iter().filter(|job| job.rounds.is_empty() && job.failure.is_none());
        let failed =
            jobs.iter().filter_map(|job| Some(format!("{}: {}", job.label(), job.failure.as_ref()?)));
        let failed: Vec<_> = failed.collect();
        let text = format!("{} not measured: {}", failed.len(), failed.first().map_or("", |f| f));
        let result = match jobs.iter().find_map(|job| job.failure.as_ref()) {
            Some(Error::Device(_)) => Err(Error::Device(text)),
            Some(_) => Err(Error::Invalid(text)),
            None => Ok(()),
        };
        let rows = jobs.iter().filter_map(Job::row).collect();
        Measured { rows, left_out: unmeasured.map(Job::label).collect(), failed, result }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; clocks {}, then {}", self.device, self.clocks[0], self.clocks[1])?;
        if let Some(Overhead { p50, p90 }) = self.launch_overhead_us {
            writeln!(f, "a launch costs the host {p50:.2} us (p90 {p90:.2})\n")?;
        }
        let width = self.rows.iter().map(|row| row.shape.len()).max().unwrap_or(0);
        writeln!(
            f,
            "{:width$}  timing   p50 us   p90 us   min us  noise  TFLOP/s   GB/s    MHz  kernel",
            "shape"
        )?;
        for row in &self.rows {
            let Times { p50_us, p90_us, min_us, noise, .. } = row.times;
            write!(f, "{:width$}  {:>6} {p50_us:>8.1} {p90_us:>8.1} {min_us:>8.1}", row.shape, row.timing)?;
            let mhz = row.sm_mhz.map_or("?".to_owned(), |mhz| format!("{mhz:.0}"));
            write!(f, " {:>5.1}% {:>8.1} {:>6.0} {mhz:>6}", noise * 100.0, row.tflops, row.gb_per_s)?;
            writeln!(f, "  {}", row.entry)?;
        }
        for label in &self.left_out {
            writeln!(f, "not measured, --seconds ran out: {label}")?;
        }
        for failure in &self.failed {
            writeln!(f, "NOT MEASURED {failure}")?;
        }
        let Some(against) = &self.against else { return Ok(()) };
        writeln!(f, "\n{} compared, {} slower", against.compared, against.regressions.len())?;
        against.regressions.iter().try_for_each(|regression| writeln!(f, "  {regression}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_kept_although_something_else_failed() {
        let suites = suite::read(None, &["headline".to_owned()]).expect("built in");
        let mut jobs = jobs(suites, TimingChoice::Cold);
        jobs.truncate(4);
        for job in &mut jobs[..3] {
            job.rounds.push(vec![20.0, 21.0]);
        }
        // One job fails before its first round, another job fails after its first round, and the last job
        // gets no time.
        jobs[0].rounds.clear();
        jobs[0].failure = Some(Error::Invalid("out of memory".into()));
        jobs[1].failure = Some(Error::Device("lost".into()));
        let Measured { rows, left_out, failed, result } = Measured::of(&jobs);
        let shapes: Vec<_> = rows.into_iter().map(|row| row.shape).collect();
        assert_eq!(shapes, [1, 2].map(|at| jobs[at].workload.label.clone()));
        assert_eq!(left_out, [jobs[3].label()]);
        assert_eq!(
            failed,
            [0, 1].map(|at| format!("{}: {}", jobs[at].label(), jobs[at].failure.as_ref().expect("failed")))
        );
        let message = result.expect_err("not all was measured").to_string();
        assert!(message.starts_with("2 not measured: ") && message.ends_with("out of memory"), "{message}");
    }
}
