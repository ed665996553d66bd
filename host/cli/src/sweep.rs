//! `ferroflash sweep`: measures the fastest kernel for each shape on this GPU, and stores it for the planner.
mod race;

use super::bench::suite;
use super::console::Console;
use super::device::{Device, Runner};
use super::ended;
use super::error::Error;
use super::options::{DeviceOptions, ONLY_GPU};
use ferroflash::Capabilities;
use ferroflash::kernels::{AttnInfo, Class, Isa, plain};
use ferroflash::plan::{Problem, explain};
use ferroflash::request::Scratch;
use ferroflash::tuning::{TUNING_VARIABLE, Tuned, Tuning, size};
use race::{Stage, race, winner};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Time every kernel that solves a shape, and write the fastest to the tuning file.
///
/// A first, short timing drops kernels that take twice the time of the fastest. The sweep then times the
/// kernels within 10 % of the fastest again, in turns. The planner reads the tuning file. A measurement
/// counts for problems of the same GPU, type, head dim and mask whose heads, queries and keys round up to the
/// same powers of two.
#[derive(clap::Args)]
#[command(mut_arg("device", |arg| arg.help(ONLY_GPU)), mut_arg("profile", |arg| arg.hide(true)))]
#[command(after_help = "\
Examples:
  ferroflash sweep                                  every built-in suite of forward shapes
  ferroflash sweep --suite headline
  ferroflash sweep --file shapes.json --output tuning.json
  FERROFLASH_TUNING=tuning.json ferroflash run --input qkv.safetensors

The tuning file is the file of --output, otherwise of $FERROFLASH_TUNING, otherwise ferroflash/tuning.json in
the user's cache folder. `ferroflash bench --help` describes the file of shapes. Sweep takes forward shapes
only.")]
pub(super) struct Args {
    /// Sweep this suite: headline, prefill, extra, hopper, hopper-extra, or a suite of --file. May be
    /// repeated [default: all].
    #[arg(long = "suite", value_name = "NAME")]
    suites: Vec<String>,
    /// Read the shapes from this file instead of the built-in suites.
    #[arg(long)]
    file: Option<PathBuf>,
    /// The tuning file to write. Measurements of other sizes and GPUs in the file stay.
    #[arg(long, short)]
    output: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    /// The file from which the planner reads measurements.
    kept_in: PathBuf,
    shapes: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    suite: String,
    problem: String,
    size: String,
    best: &'static str,
    microseconds: f64,
    /// The selection table's choice, and its time.
    table: &'static str,
    table_microseconds: f64,
    candidates: Vec<Candidate>,
}

#[derive(Serialize)]
struct Candidate {
    kernel: &'static str,
    microseconds: f64,
    stage: Stage,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let ordinal = args.device.gpu("sweep measures time")?;
    let suites = suite::read_forward(args.file.as_deref(), &args.suites)?;
    let path = args
        .output
        .or_else(|| std::env::var_os(TUNING_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from))
        .or_else(Tuning::default_path);
    let none = || {
        Error::Invalid(format!(
            "the user has no cache folder; name the tuning file with --output or {TUNING_VARIABLE}"
        ))
    };
    let path = path.ok_or_else(none)?;
    let mut tuning = if path.exists() { Tuning::read(&path)? } else { Tuning::new() };
    let device = Device::untuned_gpu(ordinal)?;
    let runner = device.kernels("sweep")?;
    let shapes: Vec<_> = suites
        .into_iter()
        .flat_map(|(suite, shapes)| shapes.into_iter().map(move |s| (suite.clone(), s)))
        .collect();
    let bar = console.progress("sweep", shapes.len());
    let (mut rows, all) = (vec![], shapes.len());
    for (suite, shape) in shapes {
        if ended::asked() {
            break;
        }
        let problem = shape.problem()?;
        let memory = shape.memory(problem);
        let row = sweep(runner, suite, problem, &memory, |text| bar.set_message(text))?;
        let (entry, microseconds) = (row.best.to_owned(), row.microseconds);
        let tuned = Tuned::new(entry, microseconds, Some(row.table_microseconds));
        tuning.keep(&runner.capabilities().name, &problem, tuned);
        // Writes the file after each shape, so that a later failure loses no measurement.
        tuning.write(&path)?;
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let early = ended::early(rows.len(), all, "shapes were swept").map_or(Ok(()), Err);
    console.report(&Report { device: device.to_string(), kept_in: path, shapes: rows }, early)
}

/// Returns every entry that solves `p`, fits the device, and computes no needless masks, and no more columns
/// than a portable kernel must.
fn candidates(p: &Problem, on: &Capabilities) -> Vec<&'static AttnInfo> {
    let mask = p.mask_kind();
    let solves = |e: &&AttnInfo| {
        (e.dtype, e.mask) == (p.dtype, mask)
            && e.takes_columns(p.columns())
            && on.runs(&e.contract).is_ok()
            && !(e.has_maps() && p.alibi)
    };
    let entries = || plain(Isa::Sm80, Class::Dense).chain(plain(Isa::Sm90a, Class::Dense)).filter(solves);
    let columns = entries().filter(|e| !e.has_maps()).map(AttnInfo::columns).min();
    entries().filter(|e| columns.is_none_or(|columns| e.columns() <= columns)).collect()
}

fn sweep(
    runner: &Runner,
    suite: String,
    problem: Problem,
    memory: &reference::Memory,
    progress: impl Fn(String),
) -> Result<Row, Error> {
    let entries = candidates(&problem, runner.capabilities());
    // Plans with `Scratch::Fastest`, because every kernel is timed with the workspace that it needs.
    let (table, _) = explain(&problem, runner.capabilities(), Scratch::Fastest)?;
    let table = table.symbol;
    let mut time = runner.stopwatch(memory)?;
    let results = race(
        entries.len(),
        |candidate, launches| time(entries[candidate].contract.symbol, launches),
        |candidate, stage| progress(format!("{problem}: {} ({stage:?})", entries[candidate].contract.symbol)),
    )?;
    let best = winner(&results).ok_or_else(|| Error::Invalid(format!("no kernel solves {problem}")))?;
    let candidates = entries.iter().zip(&results).map(|(entry, result)| Candidate {
        kernel: entry.contract.symbol,
        microseconds: result.seconds * 1e6,
        stage: result.stage,
    });
    let mut candidates: Vec<_> = candidates.collect();
    let of = |name: &str| candidates.iter().find(|c| c.kernel == name).map_or(f64::NAN, |c| c.microseconds);
    let (best, table_microseconds) = (entries[best].contract.symbol, of(table));
    let microseconds = of(best);
    candidates.sort_by(|a, b| b.stage.cmp(&a.stage).then(a.microseconds.total_cmp(&b.microseconds)));
    let (size, problem) = (size(&problem), problem.to_string());
    Ok(Row { suite, problem, size, best, microseconds, table, table_microseconds, candidates })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.shapes {
            let gain = (row.table_microseconds / row.microseconds - 1.0) * 100.0;
            writeln!(f, "{}", row.problem)?;
            writeln!(
                f,
                "  fastest: {} {:.1} us; the planner's {} is {gain:.1} % slower",
                row.best, row.microseconds, row.table
            )?;
            for Candidate { kernel, microseconds, stage } in &row.candidates {
                writeln!(
                    f,
                    "    {microseconds:>9.1} us  {kernel}{}",
                    match stage {
                        Stage::Hopeless => "  (given up)",
                        Stage::Timed => "",
                        Stage::Leader => "  (leader)",
                    }
                )?;
            }
        }
        writeln!(f, "{} shapes on {}, kept in {}", self.shapes.len(), self.device, self.kept_in.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::DType;

    #[test]
    fn candidates_solve_the_problem_and_fit() {
        let l4 = ferroflash::Capabilities::profile("l4").expect("known");
        let problem = |head_dim| Problem::new(DType::F16, 1, 512, 8, head_dim);
        let of = |head_dim| candidates(&problem(head_dim), l4);
        assert!(of(64).len() >= 20, "the table's own and the lineage's");
        assert_eq!(of(40), of(64));
        assert!(of(72).iter().all(|e| e.head_dim == 96));
        for e in of(192) {
            assert!(
                l4.runs(&e.contract).is_ok()
                    && e.mask == ferroflash::kernels::MaskKind::Full
                    && e.dtype == DType::F16
            );
        }
        let h200 = ferroflash::Capabilities::profile("h200").expect("known");
        let hopper = |e: &&AttnInfo| e.has_maps();
        assert_eq!(candidates(&problem(64), h200).into_iter().filter(hopper).count(), 3);
        assert_eq!(candidates(&problem(64).alibi(true), h200).into_iter().filter(hopper).count(), 0);
        assert_eq!(of(64).into_iter().filter(hopper).count(), 0);
    }
}
