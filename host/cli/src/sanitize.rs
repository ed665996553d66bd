//! `ferroflash sanitize`: checks memory accesses, races, initialisation and barriers of kernels.
use super::campaign::{self, Outcome, verdict_of};
use super::console::Console;
use super::ended;
use super::error::Error;
use super::options::PROFILE;
use clap::ValueEnum;
use ptx_sim::{Completion, Options, Report};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;
use std::{fmt, iter};

mod gpu;
mod own;
mod table;

/// Check every memory access, race, initialisation and barrier of kernels
///
/// Without --ptx, the program runs every kernel on edge cases (ragged tails, one row, no key, window edges,
/// grouped heads, padded head dims, strides, invalid integers) and compares the results with the reference:
/// on the GPU under each tool of compute-sanitizer, or in the simulator under several schedules.
///
/// With --ptx, the simulator runs your PTX. A text describes its buffers and launches:
///
///   buffer x f32 64 = 0.5 1.5 ...     type, length, and values (`...` repeats them);
///                                     or `zero`, `iota`, `random SEED`, or no values
///   run reduce grid 2,1 block 64 shared 1024 args x sum+4 u32:64 f32:0.5
///   expect sum = 64 within 1e-6
///   report write-after-read           instead of `expect`: the checkers must report one of
///                                     these kinds, and no other
///
/// `run` takes two more options: `optin BYTES`, the limit that the host sets with cuFuncSetAttribute, above
/// 48 KiB of dynamic shared memory; and `registers COUNT`, as ptxas prints it, to check the block's
/// registers.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  ferroflash sanitize --profile l4                                every kernel that an L4 runs
  ferroflash sanitize --config fwd_f16_d64_causal_128x64 --seeds 20
  ferroflash sanitize --ptx mine.ptx --launch launch.txt          your own kernel
  ferroflash sanitize --device gpu --config fwd_f16_d64_full_128x32   by compute-sanitizer"
)]
pub(super) struct Args {
    /// Check only the kernel with this name. The name of a combine kernel or of one pass of the backward
    /// checks all kernels whose launches have it. May be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "ptx")]
    config: Vec<String>,
    /// Check this PTX file instead of FerroFlash's kernels.
    #[arg(long, value_name = "FILE")]
    ptx: Option<PathBuf>,
    /// Read buffers and launches for --ptx from this file [default: the // comments of the PTX file].
    #[arg(long, value_name = "FILE", requires = "ptx")]
    launch: Option<PathBuf>,
    /// Number of schedules per problem in the simulator. Each schedule shuffles the warps with another seed.
    /// Asynchronous copies land late in the first schedule, at once in the second, at random in the third,
    /// and so on [default: 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Maximum number of warp instructions per launch of --ptx [default: 20 billion].
    #[arg(long, value_name = "N", requires = "ptx")]
    budget: Option<u64>,
    /// Maximum number of warp instructions without progress per launch of --ptx. Progress is a memory write,
    /// a barrier or a warp exit [default: 20 million].
    #[arg(long, value_name = "N", requires = "ptx")]
    patience: Option<u64>,
    /// The device on which the kernels run.
    #[arg(long, value_enum, default_value_t)]
    device: Checker,
    /// The GPU that the simulator models [default: l4].
    #[arg(long, value_parser = super::options::profile())]
    profile: Option<String>,
}

/// The checker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Checker {
    /// The simulator if one of its options is given or compute-sanitizer is not on PATH, otherwise the GPU
    #[default]
    Auto,
    /// The PTX simulator
    Sim,
    /// CUDA device 0 under compute-sanitizer: memcheck, racecheck, synccheck and initcheck
    Gpu,
}

/// The findings of a sanitizer run.
#[derive(Serialize)]
struct Findings {
    device: String,
    /// Schedules per problem, or `None` on a GPU.
    schedules: Option<u64>,
    clean: bool,
    seconds: f64,
    kernels: Vec<Row>,
}

/// A row of the report. In the simulator, a row has the findings in one kernel. On a GPU, a row has the
/// findings of one tool in all kernels.
#[derive(Serialize)]
struct Row {
    name: String,
    /// The number of problems that were launched and checked.
    launches: usize,
    /// The number of problems (on a GPU: of kernels) that had not run when the command was ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<usize>,
    /// The reason why the kernel cannot run here.
    skipped: Option<String>,
    /// Output of the kernels in the first schedule.
    #[serde(skip_serializing_if = "String::is_empty")]
    printed: String,
    /// On a GPU, the kernels that the tool checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<Checked>,
    findings: Vec<Finding>,
}

/// A kernel that ran under a tool of compute-sanitizer.
#[derive(Deserialize, Serialize)]
struct Checked {
    name: String,
    /// The number of problems that the kernel has solved.
    cases: usize,
    /// The number of problems that had not run when the process was ended.
    #[serde(default, skip_serializing)]
    left: usize,
    /// The reason why the kernel cannot run here.
    skipped: Option<String>,
}

/// A finding, listed once for all launches in which it occurred.
#[derive(Serialize)]
struct Finding {
    /// A kind of `ptx_sim::Kind`, `wrong-result`, `refused`, `missing-report`, or a tool of
    /// compute-sanitizer.
    kind: String,
    /// The first launch in which the finding occurred, and the number of further launches.
    case: String,
    more: usize,
    message: String,
    /// Both accesses with their source lines.
    report: Option<Report>,
}

/// The kind of a finding that is a refused launch.
const REFUSED: &str = "refused";

impl Finding {
    fn new(kind: &str, case: impl ToString, message: impl ToString) -> Self {
        let (case, message) = (case.to_string(), message.to_string());
        Finding { kind: kind.into(), case, more: 0, message, report: None }
    }

    fn of(report: Report, case: impl ToString) -> Self {
        let message = report.message.clone();
        Finding { report: Some(report.clone()), ..Finding::new(report.kind.name(), case, message) }
    }

    /// Returns whether both findings concern the same instructions, or have the same message.
    fn same(&self, other: &Finding) -> bool {
        let lines = |finding: &Finding| {
            let report = finding.report.as_ref()?;
            Some((report.first.as_ref().map(|side| side.place.ptx_line), report.second.place.ptx_line))
        };
        self.kind == other.kind
            && match (lines(self), lines(other)) {
                (None, None) => self.kind == "wrong-result" || self.message == other.message,
                (a, b) => a == b,
            }
    }
}

impl Row {
    fn new(name: impl ToString) -> Self {
        let (name, printed) = (name.to_string(), String::new());
        Row { name, launches: 0, left: None, skipped: None, printed, kernels: vec![], findings: vec![] }
    }

    /// Adds the findings of another process that ran the same tool.
    fn join(&mut self, other: Row) {
        self.launches += other.launches;
        self.leave(other.left.unwrap_or(0));
        self.kernels.extend(other.kernels);
        other.findings.into_iter().for_each(|finding| self.add(finding));
    }

    /// Adds `count` kernels that the run did not reach.
    fn leave(&mut self, count: usize) {
        if count > 0 {
            *self.left.get_or_insert(0) += count;
        }
    }

    fn add(&mut self, finding: Finding) {
        match self.findings.iter_mut().find(|known| known.same(&finding)) {
            Some(known) => known.more += 1,
            None => self.findings.push(finding),
        }
    }
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let start = Instant::now();
    let subjects = super::options::all_of(&args.config, super::options::subjects)?;
    let simulator = simulator(&args, console)?;
    let (device, kernels) = match (&simulator, &args.ptx) {
        (None, _) => gpu::check(&subjects, console)?,
        (Some(Simulator { profile, seeds }), Some(ptx)) => {
            let schedules = schedules(*seeds).map(|options| Options {
                budget: args.budget.unwrap_or(options.budget),
                patience: args.patience.unwrap_or(options.patience),
                ..options
            });
            own::check(ptx, args.launch.as_ref().unwrap_or(ptx), profile, schedules, console)?
        }
        (Some(simulator), None) => table::check(&subjects, simulator, console)?,
    };
    let whole =
        if simulator.is_some() { "kernels were checked completely" } else { "tools checked all kernels" };
    let result = conclude(&kernels, &device, whole);
    let report = Findings {
        device: device.clone(),
        schedules: simulator.map(|simulator| simulator.seeds),
        clean: result.is_ok(),
        seconds: start.elapsed().as_secs_f64(),
        kernels,
    };
    console.report(&report, result)
}

/// Returns the command's result. A refused launch says nothing about its kernel. If all findings are refused
/// launches, the command ends with the exit code for invalid input.
fn conclude(kernels: &[Row], device: &str, whole: &str) -> Result<(), Error> {
    let mut all = kernels.iter().flat_map(|row| row.findings.iter().map(move |finding| (row, finding)));
    match all.clone().all(|(_, finding)| finding.kind == REFUSED).then(|| all.next()).flatten() {
        Some((Row { name, .. }, Finding { kind, message, .. })) => {
            Err(Error::Invalid(format!("some launches were refused: {name}: {kind}: {message}")))
        }
        None => campaign::conclude(kernels.iter().map(Row::outcome), ["findings", whole], Ok(()), device),
    }
}

impl Row {
    /// The outcome without refused launches.
    fn outcome(&self) -> Outcome<'_> {
        let found = self.findings.iter().filter(|finding| finding.kind != REFUSED);
        let failures = found.map(|finding| format!("{}: {}", finding.kind, finding.message)).collect();
        let (name, skipped) = (Cow::Borrowed(&*self.name), self.skipped.as_deref());
        let (is_begun, left) = (self.launches > 0, self.left.unwrap_or(0));
        Outcome { name, skipped, is_begun, left, failures }
    }
}

/// The simulator's options.
struct Simulator<'a> {
    profile: &'a str,
    seeds: u64,
}

/// Returns the simulator's options, or `None` if the GPU checks the kernels.
fn simulator<'a>(args: &'a Args, console: &Console) -> Result<Option<Simulator<'a>>, Error> {
    let own = [
        ("--ptx", args.ptx.is_some()),
        ("--seeds", args.seeds.is_some()),
        ("--profile", args.profile.is_some()),
    ];
    let asked = own.into_iter().find(|(_, given)| *given);
    let simulator =
        Simulator { profile: args.profile.as_deref().unwrap_or(PROFILE), seeds: args.seeds.unwrap_or(3) };
    match (args.device, asked) {
        (Checker::Gpu, Some((option, _))) => Err(Error::Invalid(format!(
            "{option} is for the simulator; use --device sim, or leave it out: on the GPU, compute-sanitizer \
             checks the table's kernels once"
        ))),
        (Checker::Gpu, None) => Ok(None),
        (Checker::Sim, _) | (Checker::Auto, Some(_)) => Ok(Some(simulator)),
        (Checker::Auto, None) => match gpu::available() {
            Ok(device) => {
                console.note(format_args!("using {device}, by compute-sanitizer"));
                Ok(None)
            }
            Err(why) => {
                console.note(format_args!("no GPU ({why}); using the simulator"));
                Ok(Some(simulator))
            }
        },
    }
}

/// Returns `seeds` different schedules.
fn schedules(seeds: u64) -> impl Iterator<Item = Options> + Clone {
    let completions = [Completion::Late, Completion::Eager, Completion::Random];
    (0..seeds).zip(completions.into_iter().cycle()).map(|(seed, completion)| Options {
        seed,
        completion,
        ..Options::default()
    })
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colour = std::io::stdout().is_terminal();
        let name = self.kernels.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for row in &self.kernels {
            match (&row.skipped, row.findings.len()) {
                (Some(reason), _) => writeln!(f, "{:name$}  skipped: {reason}", row.name)?,
                (None, 0) if row.launches == 0 => writeln!(f, "{:name$}  not run", row.name)?,
                (None, 0) => match row.left {
                    None => writeln!(f, "{:name$}  clean, {} launches", row.name, row.launches)?,
                    Some(left) => {
                        let what = if self.schedules.is_some() { "problems" } else { "kernels" };
                        let launches = row.launches;
                        writeln!(
                            f,
                            "{:name$}  clean so far, {launches} launches, {left} {what} left",
                            row.name
                        )?;
                    }
                },
                (None, n) => {
                    let findings = if n == 1 { "FINDING" } else { "FINDINGS" };
                    writeln!(f, "{:name$}  {n} {findings}, {} launches", row.name, row.launches)?;
                }
            }
            if !row.kernels.is_empty() {
                let skipped = row.kernels.iter().filter(|kernel| kernel.skipped.is_some()).count();
                let ran = row.kernels.iter().filter(|kernel| kernel.cases > 0).count();
                writeln!(f, "  {ran} kernels ran, {skipped} were skipped")?;
            }
            row.printed.lines().try_for_each(|line| writeln!(f, "    printed: {line}"))?;
            for finding in &row.findings {
                match &finding.report {
                    Some(report) => writeln!(f, "{}", report.display(colour))?,
                    None => writeln!(f, "{}: {}", finding.kind, finding.message)?,
                }
                let more = iter::once(finding.more)
                    .filter(|more| *more > 0)
                    .map(|more| format!(", and in {more} more"));
                writeln!(f, "  at {}{}", finding.case, more.collect::<String>())?;
            }
        }
        let launches: usize = self.kernels.iter().map(|row| row.launches).sum();
        let is_wrong = self.kernels.iter().any(|row| !row.findings.is_empty());
        let nothing_ran = self.kernels.iter().all(|row| row.launches == 0 && row.left.is_none());
        let verdict = verdict_of(self.clean, is_wrong, nothing_ran, ["clean", "NOT CLEAN"]);
        // On a GPU, each tool counts the kernels that it skips.
        let skipped = campaign::skipped(self.kernels.iter().map(Row::outcome));
        writeln!(f, "{verdict}: {launches} launches on {}, {:.1} s{skipped}", self.device, self.seconds)
    }
}
