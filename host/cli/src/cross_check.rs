//! `ferroflash cross-check`: compares the GPU with the simulator.
use super::campaign::{self, Outcome};
use super::console::Console;
use super::device::{self, Device};
use super::ended;
use super::error::Error;
use super::options::{DeviceKind, GPU_OR_DRY_RUN, KernelOptions};
use ferroflash::driver::Harness;
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, Capabilities, DType};
use ptx_sim::{MmaArch, MmaMode, Options};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use reference::{OnDevice, Subject, Task};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

mod difference;
mod products;

use difference::Difference;
use products::{Products, Tally};

/// Compare the results of every kernel on the GPU and in the simulator.
///
/// The simulator rounds products as the GPU's tensor cores do. The simulator's exponentials and reciprocals
/// differ from the GPU's approximations, so a probability may round differently. First the program runs
/// random products (subnormals, infinities, cancellation) through the tensor cores alone: the results of
/// these products must be equal in every bit.
///
///   result          allowed difference
///   O, gradients    2 ulp of the largest element of the row; also half of a gradient's tolerance,
///                   because a row of a gradient may be a sum of large numbers that cancel;
///                   with probabilities of e4m3, in 2 % of a kernel's rows, but at least one
///                   row, also 1/8 of the largest element of the row
///   LSE             2e-6 of its value + 1e-6; in 2 % of a kernel's rows, but at least
///                   one row, also one rounding of a probability
///   merge into f32  16 ulp
///   append          none
///
/// Without a GPU, `--device auto` is an error. `--device sim` tries this command: it compares the simulator
/// with itself, which says nothing about a GPU, and the JSON report has `"agree": null`.
#[derive(clap::Args)]
#[command(mut_arg("device", |arg| arg.help(GPU_OR_DRY_RUN)))]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  ferroflash cross-check --device gpu
  ferroflash cross-check --device gpu --products 100000 --json
  ferroflash cross-check --device gpu --config fwd_bf16_d128_causal_128x64
  ferroflash cross-check --device gpu --config decode_f16_d128_causal_8_tiles"
)]
pub(super) struct Args {
    /// Number of random 16 x 8 x 16 products of each element type.
    #[arg(long, value_name = "N", default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    products: u32,
    #[command(flatten)]
    kernels: KernelOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    simulator: String,
    seed: u64,
    /// Whether the GPU and the simulator agree; `None` if no GPU was compared.
    agree: Option<bool>,
    /// Whether all results are within their bounds, of the GPU or of a second simulator.
    #[serde(skip)]
    passed: bool,
    seconds: f64,
    products: Vec<Tally>,
    families: Vec<Family>,
    kernels: Vec<Row>,
}

/// The kernels of a family together.
#[derive(Serialize)]
struct Family {
    name: &'static str,
    /// Kernels that ran.
    kernels: usize,
    skipped: usize,
    /// Kernels that had not run when the command was ended.
    not_run: usize,
    cases: usize,
    #[serde(flatten)]
    difference: Difference,
    failures: usize,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    family: &'static str,
    cases: usize,
    /// Cases that had not run when the command was ended.
    left: usize,
    /// The reason why the kernel cannot run here.
    skipped: Option<String>,
    #[serde(flatten)]
    difference: Difference,
    failures: Vec<String>,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let subjects = args.kernels.subjects()?;
    let gpu = |ordinal| {
        device::open_cuda(ordinal).map_err(|error| match error {
            Error::NoDevice(why) => {
                Error::NoDevice(device::needs_gpu(&why, "`cross-check` compares a GPU with the simulator"))
            }
            other => other,
        })
    };
    match args.kernels.device.kind()? {
        DeviceKind::Auto => agree(&Attention::new(gpu(0)?), &subjects, &args, console),
        DeviceKind::Gpu(ordinal) => agree(&Attention::new(gpu(ordinal)?), &subjects, &args, console),
        DeviceKind::Sim => {
            let profile = args.kernels.device.profile();
            // Kernels run one after another; only the blocks of one kernel run in parallel. Otherwise a
            // thread that waits for its blocks would start another kernel.
            let parallel = subjects.len() == 1;
            let options = Options { mma: arithmetic(profile), parallel, ..Options::default() };
            agree(&Attention::new(SimDriver::with_options(profile, options)?), &subjects, &args, console)
        }
        DeviceKind::Cpu => Device::Cpu.kernels("cross-check").map(drop),
    }
}

/// Returns the simulator's card that is closest to `capabilities`.
fn profile(capabilities: &Capabilities) -> &'static str {
    match capabilities.compute_capability {
        (9, _) => "h200",
        (8, 0) => "a100",
        _ => "l4",
    }
}

/// Returns the rounding of the tensor cores of the card with these capabilities.
fn arithmetic(profile: &str) -> MmaMode {
    MmaMode::Exact(if profile.starts_with('h') { MmaArch::Hopper } else { MmaArch::Ampere })
}

/// The number of bytes of a thread's stack. A thread that waits for a simulator's threads starts other
/// kernels, which nest on its stack.
const STACK: usize = 256 << 20;

fn agree<D: Harness>(
    attention: &Attention<D>,
    subjects: &[&'static dyn Subject],
    args: &Args,
    console: &Console,
) -> Result<(), Error> {
    let start = Instant::now();
    let on_gpu = args.kernels.device.kind()? != DeviceKind::Sim;
    let fits =
        |subject: &&'static dyn Subject| reference::unfit(*subject, attention.capabilities()).is_none();
    if !subjects.iter().any(fits) {
        let device = &attention.capabilities().name;
        let which = "`--device sim --profile h200` has a device that runs all";
        return Err(Error::Invalid(format!("none of these kernels runs on {device}; {which}")));
    }
    let name = profile(attention.capabilities());
    let options = Options { mma: arithmetic(name), ..Options::default() };
    let simulator = Attention::new(SimDriver::with_options(name, options.clone())?);
    let bar = console.progress("cross-check", subjects.len() + 2);
    let mut tallies = vec![];
    for dtype in [DType::F16, DType::Bf16] {
        bar.set_message(format!("{} products", dtype.name()));
        let products = Products::random(dtype, args.products, args.kernels.seed);
        tallies
            .push(products.compare(&products.run(attention.driver())?, &products.run(simulator.driver())?));
        bar.inc(1);
    }
    // Each thread has one simulator, because most problems have few blocks.
    let options = Options { parallel: subjects.len() == 1, ..options };
    let own = || SimDriver::with_options(name, options.clone()).map(Attention::new);
    let workers = ThreadPoolBuilder::new().stack_size(STACK).build();
    let workers = workers.map_err(|error| Error::Invalid(format!("no threads: {error}")))?;
    let kernels = subjects.par_iter().map_init(own, |simulator, subject| {
        let simulator = simulator.as_ref().map_err(|error| Error::Invalid(error.to_string()))?;
        let row = row(attention, simulator, *subject, args.kernels.seed);
        bar.set_message(subject.contract().symbol);
        bar.inc(1);
        row
    });
    let kernels = workers.install(|| kernels.collect::<Result<Vec<Row>, Error>>())?;
    bar.finish_and_clear();
    let said = ["differences", "kernels were compared completely"];
    let device = &attention.capabilities().name;
    let result = match tallies.iter().find_map(Tally::failure) {
        Some(first) => {
            let failures = tallies.iter().filter_map(Tally::failure).count()
                + kernels.iter().map(|row| row.failures.len()).sum::<usize>();
            Err(Error::Wrong(format!("{failures} {}, the first: {first}", said[0])))
        }
        None => campaign::conclude(kernels.iter().map(Row::outcome), said, Ok(()), device),
    };
    let report = Report {
        device: device.to_string(),
        simulator: simulator.capabilities().name.to_string(),
        seed: args.kernels.seed,
        agree: on_gpu.then_some(result.is_ok()),
        passed: result.is_ok(),
        seconds: start.elapsed().as_secs_f64(),
        products: tallies,
        families: families(&kernels),
        kernels,
    };
    console.report(&report, result)
}

fn row<D: Harness>(
    attention: &Attention<D>,
    simulator: &Attention<SimDriver>,
    subject: &'static dyn Subject,
    seed: u64,
) -> Result<Row, Error> {
    let devices = [attention.capabilities(), simulator.capabilities()];
    let skipped = devices.into_iter().find_map(|device| reference::unfit(subject, device));
    let name = subject.contract().symbol;
    let (family, difference) = (subject.family(), Difference::default());
    let mut row = Row { name, family, cases: 0, left: 0, skipped, difference, failures: vec![] };
    if row.skipped.is_some() {
        return Ok(row);
    }
    let is_taken = |task: &Task| devices.into_iter().all(|device| subject.takes(task, device));
    for task in subject.edges(seed).into_iter().filter(is_taken) {
        if ended::asked() {
            row.left += 1;
            continue;
        }
        let work = task.work();
        let failed = |error| Error::of_launch(error, name, &task);
        let left = OnDevice::new(attention, &*work, Some(name)).and_then(|device| device.run());
        let right = OnDevice::new(simulator, &*work, Some(name)).and_then(|device| device.run());
        let difference = Difference::of(&*work, &left.map_err(failed)?, &right.map_err(failed)?);
        row.cases += 1;
        row.failures.extend(difference.failure().map(|failure| format!("{task}: {failure}")));
        row.difference = row.difference.and(difference);
    }
    row.failures.extend(row.difference.too_many_rows());
    Ok(row)
}

impl Row {
    fn outcome(&self) -> Outcome<'_> {
        let (name, skipped) = (self.name.into(), self.skipped.as_deref());
        let (is_begun, left) = (self.cases > 0, self.left);
        Outcome { name, skipped, is_begun, left, failures: self.failures.clone() }
    }
}

/// Returns the families of `rows`, in their order.
fn families(rows: &[Row]) -> Vec<Family> {
    let mut all: Vec<Family> = vec![];
    for row in rows {
        let at = all.iter().position(|family| family.name == row.family).unwrap_or_else(|| {
            let (name, difference) = (row.family, Difference::default());
            all.push(Family { name, kernels: 0, skipped: 0, not_run: 0, cases: 0, difference, failures: 0 });
            all.len() - 1
        });
        let family = &mut all[at];
        match (&row.skipped, row.cases) {
            (Some(_), _) => family.skipped += 1,
            (None, 0) => family.not_run += 1,
            (None, _) => family.kernels += 1,
        }
        family.cases += row.cases;
        family.difference = family.difference.and(row.difference);
        family.failures += row.failures.len();
    }
    all
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Family { name, kernels, skipped, not_run, cases, difference, failures } = self;
        write!(f, "{name:13}  {kernels:>4} kernels, {skipped} skipped")?;
        if *not_run > 0 {
            write!(f, ", {not_run} not run")?;
        }
        if *kernels == 0 {
            return Ok(());
        }
        write!(
            f,
            ", {cases:>4} cases, {:>6.2} % the same bits, o within {:.2} ulp, {failures} differences",
            difference.same(),
            difference.o_ulps
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tally in &self.products {
            writeln!(f, "{tally}")?;
        }
        let rows = self.kernels.iter().map(|row| {
            let Difference { o_ulps, rows, rounded_otherwise, .. } = row.difference;
            let otherwise = 100.0 * rounded_otherwise as f64 / rows.max(1) as f64;
            let (cases, same, left) = (row.cases, row.difference.same(), campaign::left(row.left));
            let cells = format!("{cases:>5}  {same:>7.2} %  {o_ulps:>6.2}  {otherwise:.2} % of rows{left}");
            (row.outcome(), cells)
        });
        let heading = ["kernel", "cases  same bits  o, ulp  lse rounded otherwise"];
        campaign::table(f, heading, "DIFFERS", rows)?;
        for family in &self.families {
            writeln!(f, "{family}")?;
        }
        let Report { device, simulator, seed, seconds, .. } = self;
        let differ = self.products.iter().any(|tally| tally.failure().is_some());
        let (right, dry) = match self.agree {
            Some(_) => ("agree", ""),
            None => ("NO GPU WAS COMPARED", " are both the simulator; use --device gpu"),
        };
        let words = [right, "DO NOT AGREE"];
        let verdict = match differ {
            true => words[1],
            false => campaign::verdict(self.kernels.iter().map(Row::outcome), self.passed, words),
        };
        writeln!(f, "{verdict}: {device} and {simulator}{dry}, seed {seed}, {seconds:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_that_ended_early_does_not_disagree() {
        let row = |name, cases, failures: &[&str]| Row {
            name,
            family: "forward",
            cases,
            left: 1,
            skipped: None,
            difference: Difference::default(),
            failures: failures.iter().map(|text| (*text).to_owned()).collect(),
        };
        let said = |kernels: Vec<Row>| {
            let report = Report {
                device: "a GPU".into(),
                simulator: "its simulator".into(),
                seed: 1,
                agree: Some(false),
                passed: false,
                seconds: 0.0,
                products: vec![],
                families: families(&kernels),
                kernels,
            };
            report.to_string()
        };
        let ended = said(vec![row("a", 2, &[]), row("b", 0, &[])]);
        let end = "ended early, nothing wrong so far: a GPU and its simulator, seed 1, 0.0 s\n";
        assert!(ended.ends_with(end), "{ended}");
        assert!(
            ended.contains("of rows  1 cases left\nb  not run\n")
                && ended.contains("1 kernels, 0 skipped, 1 not run"),
            "{ended}"
        );
        let none = said(vec![row("b", 0, &[])]);
        assert!(none.ends_with(end) && !none.contains(" %"), "{none}");
        let wrong = said(vec![row("a", 2, &["off"]), row("b", 0, &[])]);
        assert!(wrong.contains("DO NOT AGREE: a GPU"), "{wrong}");
    }
}
