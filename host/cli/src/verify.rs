//! `ferroflash verify`: compares every kernel with the f64 reference.
use super::campaign::{self, Outcome};
use super::console::Console;
use super::device::{Device, Runner};
use super::error::Error;
use super::options::KernelOptions;
use super::{ended, workers};
use ferroflash::DType;
use ferroflash::kernels::{ATTENTION, AttnInfo, Class};
use ferroflash::lineage::CONFIGURATIONS;
use reference::{Soak, Subject, Task, headline, reproducer};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

mod shared;
mod trials;

pub(super) use trials::{Row, Trials};

/// Compare every kernel with the f64 reference on a grid of problems
///
/// The grid has every family (attention, varlen, KV caches, append, merge; in a build with the feature
/// `training` the gradients of attention), lengths from 1 to 2048, every
/// mask, grouped heads, padded head dims and every layout. Varlen and cached problems run twice under one
/// plan: with other lengths, and with invalid integers. Outputs hold NaN before each launch, and guard bytes
/// lie on both sides. A result passes if max|out - reference| <= 2 * max|naive - reference| + 1e-5. The naive
/// result rounds every step to the element type. With fewer than 16384 elements, its error may be small by
/// luck, so two roundings of the largest element are permitted too.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash verify                                     every kernel, the whole grid, on the GPU
  ferroflash verify --quick --device sim                every kernel, a small grid, in the simulator
  ferroflash verify --config fwd_f16_d64_causal_128x48  one kernel
  ferroflash verify --all-configs                       the predecessor's configurations, too
  ferroflash verify --quick --soak 1000 --json          1000 bit-identical launches of each kernel, too")]
pub(super) struct Args {
    /// Also run every configuration of the predecessor, on the headline workload (f16, batch 1 and 2, 8
    /// heads, 512 queries and keys, head dim 64) and on the smallest problem on which the predecessor failed.
    /// The error of each element must be below 2e-3.
    #[arg(long)]
    all_configs: bool,
    /// Use a small grid of edge cases, for the simulator.
    #[arg(long)]
    quick: bool,
    /// Also launch each kernel N times, with and without a wait after each launch. All results must be equal
    /// in every bit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    soak: usize,
    /// Also capture a launch as a CUDA graph, and replay it with other lengths and with invalid integers, on
    /// up to N varlen or cached problems of each kernel. The simulator has no graphs: it launches again
    /// [default: 4 on a GPU, 0 in the simulator].
    #[arg(long, value_name = "N")]
    graphs: Option<usize>,
    /// Number of processes that share the kernels [default: one per core on a GPU with more than 8 kernels,
    /// otherwise 1]. The driver compiles one kernel at a time per process, which takes most of the time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    jobs: Option<u8>,
    #[command(flatten)]
    kernels: KernelOptions,
}

/// Problems per kernel that a GPU also solves with a graph.
const GRAPHS: usize = 4;

#[derive(Serialize)]
struct Report {
    device: String,
    seed: u64,
    grid: &'static str,
    soak_launches: usize,
    passed: bool,
    seconds: f64,
    kernels: Vec<Row>,
    /// The results of the lineage's configurations, and of every other kernel that solves the lineage's
    /// headline workload.
    headline: Vec<Row>,
}

/// Bound of an element's error on the headline workload.
const HEADLINE_BOUND: f64 = 2e-3;

/// With at most this number of kernels, one process is faster than several processes.
const FEW: usize = 8;
/// Default maximum number of concurrent processes. Each process takes some hundred MiB of device memory.
const MOST_JOBS: usize = 16;

/// The results of all kernels, possibly partial.
#[derive(Default)]
struct Rows {
    kernels: Vec<Row>,
    headline: Vec<Row>,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let (subjects, seed) = (args.kernels.subjects()?, args.kernels.seed);
    let device = Device::open(&args.kernels.device, console)?;
    let runner = device.kernels("verify")?;
    device.affords(2 * args.soak * subjects.len(), &args.kernels.device, console)?;
    let start = Instant::now();
    let several = !device.is_simulated() && subjects.len() > FEW;
    let jobs = args.jobs.map_or(if several { workers::cores().min(MOST_JOBS) } else { 1 }, usize::from);
    let (Rows { kernels, headline }, ran) = match jobs.min(subjects.len()) {
        0 | 1 => alone(&args, &subjects, &device, runner, console),
        jobs => shared::verify(&args, &subjects, &device, jobs, console)?,
    };
    let said = ["failures", "kernels were verified completely"];
    let result = campaign::conclude(headline.iter().chain(&kernels).map(Row::outcome), said, ran, &device);
    let report = Report {
        device: device.to_string(),
        seed,
        grid: if args.quick { "quick" } else { "full" },
        soak_launches: args.soak,
        passed: result.is_ok(),
        seconds: start.elapsed().as_secs_f64(),
        kernels,
        headline,
    };
    console.report(&report, result)
}

/// Verifies all kernels in this process.
fn alone(
    args: &Args,
    subjects: &[&'static dyn Subject],
    device: &Device,
    runner: &Runner,
    console: &Console,
) -> (Rows, Result<(), Error>) {
    let seed = args.kernels.seed;
    let graphs = args.graphs.unwrap_or(if device.is_simulated() { 0 } else { GRAPHS });
    let mut work = Trials::with_graphs(graphs);
    for subject in subjects {
        let mut tasks = if args.quick { subject.edges(seed) } else { subject.grid(seed) };
        if !device.is_simulated() {
            tasks.extend(subject.corrupt(seed));
        }
        tasks.retain(|task| subject.takes(task, runner.capabilities()));
        work.add(Row::new(subject.contract().symbol, *subject, runner), tasks);
    }
    let mut headline = if args.all_configs { headline_work(args, runner) } else { Trials::default() };
    let bar = console.progress("verify", headline.len() + work.len());
    let mut ran = headline.verify(runner, &bar);
    for row in headline.rows.iter_mut().filter(|row| row.max_error >= HEADLINE_BOUND) {
        row.failures
            .push(format!("headline workload: off by {:.3e}, allowed {HEADLINE_BOUND:e}", row.max_error));
    }
    ran = ran.and_then(|()| work.verify(runner, &bar));
    for row in work.rows.iter_mut().filter(|row| row.skipped.is_none() && args.soak > 0) {
        bar.set_message(format!("{}, {} launches", row.name, args.soak));
        if ran.is_ok() && !ended::asked() {
            ran = agree(runner, row, args.soak, seed);
        } else {
            row.leave_soak();
        }
    }
    bar.finish_and_clear();
    (Rows { kernels: work.rows, headline: headline.rows }, ran)
}

/// Returns the lineage's configurations, and every kernel with the headline workload's dtype and head dim, by
/// mask.
fn headline_work(args: &Args, runner: &Runner) -> Trials {
    let named = CONFIGURATIONS.iter().flat_map(|configuration| {
        let entries = configuration.entries().into_iter().flatten();
        entries.map(|entry| (configuration.name, entry))
    });
    let is_own = |e: &&AttnInfo| {
        let kind = (e.class(), e.is_plain(), e.dtype, e.head_dim);
        kind == (Class::Dense, true, DType::F16, 64)
    };
    let own = ATTENTION.iter().filter(is_own).map(|e| (e.contract.symbol, e));
    let asked = |name: &str, e: &AttnInfo| {
        let config = &args.kernels.config;
        config.is_empty() || config.iter().any(|only| only == name || only == e.contract.symbol)
    };
    let runs: Vec<_> = named.chain(own).filter(|(name, e)| asked(name, e)).collect();
    let mut cases = reproducer(args.kernels.seed);
    if !args.quick {
        cases.extend(headline(args.kernels.seed));
    }
    let kinds = [ferroflash::kernels::MaskKind::Full, ferroflash::kernels::MaskKind::Causal];
    let mut work = Trials::default();
    for (kind, (name, entry)) in kinds.into_iter().flat_map(|kind| runs.iter().map(move |run| (kind, run))) {
        if entry.mask == kind {
            let cases = cases.iter().filter(|case| case.problem().mask_kind() == kind);
            work.add(Row::new(name, *entry, runner), cases.cloned().map(Task::Attention));
        }
    }
    work
}

/// Launches a kernel repeatedly. Every outcome must equal the first outcome, bit by bit.
fn agree(runner: &Runner, row: &mut Row, launches: usize, seed: u64) -> Result<(), Error> {
    for subject in super::options::subjects(Some(&row.name))? {
        let task = subject.soak(seed);
        let work = task.work();
        for every in [1, Soak::AT_THE_END] {
            if ended::asked() {
                row.leave_soak();
                return Ok(());
            }
            let soak = Soak { launches, every, threads: 1, streams: 1 };
            let [launched, differing] = runner.soak(&*work, &row.name, soak, launches)?;
            if launched < launches {
                row.leave_soak();
            }
            if differing > 0 {
                row.failures.push(format!("{task}: {differing} launches differ from the first; {soak}"));
            }
        }
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.kernels.iter().map(|row| {
            let (cases, ratio, left) = (row.cases, row.worst_ratio, campaign::left(row.left));
            (row.outcome(), format!("{cases:>5}  {ratio:>6.3}{left}"))
        });
        let heading = ["kernel", "cases  worst error / allowed"];
        campaign::table(f, heading, "WRONG", rows)?;
        if self.soak_launches > 0 {
            writeln!(
                f,
                "{} launches of each kernel, with and without a wait after each launch, compared bit by bit",
                self.soak_launches
            )?;
        }
        if !self.headline.is_empty() {
            let name = self.headline.iter().map(|row| row.name.len()).max().unwrap_or(0);
            let rows = self.headline.iter().map(|row| {
                let mask = row.mask.as_deref().unwrap_or_default();
                let label = format!("{:name$}  {mask:<6}", row.name).into();
                (Outcome { name: label, ..row.outcome() }, format!("{:>5}  {:.2e}", row.cases, row.max_error))
            });
            let first = format!("{:name$}  mask", "configuration");
            let heading = [&*first, "cases  largest error on the headline workload"];
            campaign::table(f, heading, "WRONG", rows)?;
        }
        let cases: usize = self.kernels.iter().chain(&self.headline).map(|row| row.cases).sum();
        let all = self.kernels.iter().chain(&self.headline).map(Row::outcome);
        let verdict = campaign::verdict(all, self.passed, ["all pass", "FAILED"]);
        let graphs: usize = self.kernels.iter().map(|row| row.graphs).sum();
        let graphs = if graphs > 0 { format!(", {graphs} also by graphs") } else { String::new() };
        if cfg!(feature = "cubins") {
            let count = |form| self.kernels.iter().filter(|row| row.cases > 0 && row.form == form).count();
            writeln!(f, "{} kernels ran as machine code, {} as PTX", count("cubin"), count("PTX"))?;
        }
        let Report { device, grid, seed, seconds, .. } = self;
        let skipped = campaign::skipped(self.kernels.iter().map(Row::outcome));
        writeln!(
            f,
            "{verdict}: {cases} cases{graphs} on {device}, {grid} grid, seed {seed}, {seconds:.1} s{skipped}"
        )
    }
}
