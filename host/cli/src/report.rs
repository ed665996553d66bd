//! `ferroflash report`: verifies and measures this card, and writes one page and one JSON file.
mod model;
mod page;
mod sample;
mod steps;

use super::console::Console;
use super::device::{self, Device};
use super::error::Error;
use super::info::Limits;
use super::options::{DeviceKind, DeviceOptions, GPU_OR_DRY_RUN};
use super::{ended, files, nvml};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use steps::Steps;

/// Check and measure this GPU in at most ten minutes, and write a page and a JSON about it.
///
/// The report has the driver, the clocks, and the time of a first call. The report has a sample of every
/// kernel family, drawn by --seed and compared with the f64 reference. The report has every suite of
/// `ferroflash bench`, with median and 90th percentile, TFLOP/s, GB/s and the clock. On an L4, it has the
/// model's prediction beside each measurement. The program needs only the GPU's driver. It sends nothing.
/// If you like, send the two files to the project.
#[derive(clap::Args)]
#[command(mut_arg("device", |arg| arg.help(GPU_OR_DRY_RUN)))]
#[command(after_help = "\
Examples:
  ferroflash report                               report.html and report.json in ./ferroflash-report
  ferroflash report --device gpu:1 --output a100  a report on the second GPU, in the folder a100
  ferroflash report --seconds 120                 a shorter report, which names what it leaves out
  ferroflash report --device sim                  a dry run of seconds in the simulator, without times")]
pub(super) struct Args {
    /// The folder for `report.html` and `report.json`. The command creates it.
    #[arg(long, short, value_name = "FOLDER", default_value = "ferroflash-report")]
    output: PathBuf,
    /// Time limit in seconds.
    #[arg(long, value_name = "N", default_value_t = 540,
        value_parser = clap::value_parser!(u16).range(30..=600))]
    seconds: u16,
    /// Seed of the sample and of its inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    device: DeviceOptions,
}

/// All results. Each step's report has the form that the step's command prints.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    command: String,
    device: String,
    /// Whether this is a dry run: there was no GPU, so nothing was measured.
    dry_run: bool,
    /// The display driver's version, or the reason why it is unknown.
    driver: String,
    limits: Limits,
    /// Highest clocks of the SMs and of the memory, in MHz, if the driver knows them.
    most_mhz: [Option<u32>; 2],
    /// The clocks before the first and after the last step, or the reason why they are unknown.
    clocks: [String; 2],
    seed: u64,
    seconds: f64,
    passed: bool,
    /// The output of `ferroflash bench --first-call --json`.
    first_call: Option<Value>,
    /// The output of `ferroflash verify --quick --json` for the sample.
    verify: Option<Value>,
    /// The output of `ferroflash bench --json`. On an L4, its rows have `predicted_us`: the lowest and the
    /// highest prediction.
    bench: Option<Value>,
    /// The plot of the suites.
    #[serde(skip)]
    plot: Option<String>,
    /// The comparison of the model's predictions with the rows of `bench`.
    model: Option<model::Held>,
    /// The missing parts, each with the reason.
    missing: Vec<String>,
    /// The place of both files.
    #[serde(skip)]
    folder: PathBuf,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let start = Instant::now();
    let kind = args.device.kind()?;
    let none = |why: &str| device::needs_gpu(why, "`report` measures a GPU");
    let (device, gpu) = match kind {
        DeviceKind::Cpu => return Err(Error::Invalid(none("the CPU runs no kernel"))),
        DeviceKind::Sim => {
            (Device::open(&args.device, console)?, Err("a simulator has no driver and no clocks".to_owned()))
        }
        DeviceKind::Auto | DeviceKind::Gpu(_) => {
            let opened = Device::gpu(args.device.ordinal(), console);
            let device = opened.map_err(|error| match error {
                Error::NoDevice(why) => Error::NoDevice(none(&why)),
                other => other,
            })?;
            (device, nvml::Gpu::open(args.device.ordinal()))
        }
    };
    let runner = device.kernels("report")?;
    std::fs::create_dir_all(&args.output).map_err(|e| files::unwritten(&args.output, &e))?;
    let clocks = || gpu.as_ref().map_or_else(|why| format!("unknown: {why}"), |gpu| gpu.state().to_string());
    let (before, simulated) = (clocks(), device.is_simulated());
    let kernels = sample::draw(runner.capabilities(), simulated, args.seed);
    let words = args.device.words(simulated);
    let steps = Steps { start, limit: Duration::from_secs(args.seconds.into()), device: words, console };
    let mut taken = steps.take(&kernels, args.seed, simulated, &args.output)?;
    let model = taken.bench.as_mut().and_then(|bench| model::hold(&runner.capabilities().name, bench));
    let driver = match &gpu {
        Ok(gpu) => gpu.driver().unwrap_or_else(|| "unknown".into()),
        Err(why) => format!("unknown: {why}"),
    };
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: jiff::Timestamp::now().strftime("%F").to_string(),
        command: std::env::args().skip(1).fold("ferroflash".into(), |all, word| format!("{all} {word}")),
        device: device.to_string(),
        dry_run: simulated,
        driver,
        limits: runner.capabilities().into(),
        most_mhz: gpu.as_ref().map_or([None; 2], |gpu| gpu.most()),
        clocks: [before, clocks()],
        seed: args.seed,
        seconds: start.elapsed().as_secs_f64(),
        passed: taken.result.is_ok(),
        first_call: taken.first_call,
        verify: taken.verify,
        bench: taken.bench,
        plot: taken.plot,
        model,
        missing: taken.missing,
        folder: args.output,
    };
    let json = console.json(&report, &taken.result);
    files::write_whole(&report.folder.join("report.json"), json.as_bytes())?;
    files::write_whole(&report.folder.join("report.html"), page::html(&report)?.as_bytes())?;
    console.report(&report, taken.result)
}

/// How far the verification of the drawn kernels came.
#[derive(Default)]
struct Verified {
    /// Kernels whose results are all within their bounds.
    right: usize,
    /// Kernels with a result outside of its bounds.
    wrong: usize,
    /// Kernels that the time limit or a signal stopped before all of their cases ran.
    cut: usize,
}

impl Verified {
    /// Counts the kernels in a report of `verify`.
    fn of(verify: Option<&Value>) -> Self {
        let rows = verify.and_then(|step| step["kernels"].as_array()).into_iter().flatten();
        rows.fold(Verified::default(), |counts, row| {
            let failed = row["failures"].as_array().is_some_and(|failures| !failures.is_empty());
            match (failed, row["left"].as_u64().unwrap_or(0) > 0, row["skipped"].is_string()) {
                (true, ..) => Verified { wrong: counts.wrong + 1, ..counts },
                (_, true, _) => Verified { cut: counts.cut + 1, ..counts },
                (_, _, true) => counts,
                _ => Verified { right: counts.right + 1, ..counts },
            }
        })
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verified { right, wrong, cut } = self;
        match (right, wrong) {
            (0, 0) => write!(f, "no kernel verified")?,
            (_, 0) => write!(f, "{right} kernels verified, all within their bounds")?,
            _ => write!(f, "{right} kernels verified, and {wrong} WRONG")?,
        }
        if *cut > 0 { write!(f, "; {cut} did not run all of their cases") } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dry_run {
            true => writeln!(f, "{}: a dry run, without driver and clocks", self.device)?,
            false => writeln!(f, "{}, driver {}; {}", self.device, self.driver, self.clocks[1])?,
        }
        let rows = |step: &Option<Value>, key: &str| {
            step.as_ref().and_then(|step| step[key].as_array()).map_or(0, Vec::len)
        };
        let verified = Verified::of(self.verify.as_ref());
        writeln!(f, "{verified}; {} shapes measured", rows(&self.bench, "rows"))?;
        if let Some(held) = &self.model {
            writeln!(f, "{held}")?;
        }
        self.missing.iter().try_for_each(|what| writeln!(f, "missing: {what}"))?;
        let folder = self.folder.display();
        writeln!(f, "{folder}/report.html and {folder}/report.json, {:.0} s", self.seconds)
    }
}
