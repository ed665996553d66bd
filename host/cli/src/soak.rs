//! `ferroflash soak`: launches each kernel thousands of times.
use super::campaign::{self, Outcome};
use super::console::Console;
use super::device::{Device, Runner};
use super::ended;
use super::error::Error;
use super::options::KernelOptions;
use reference::{Soak, Subject};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// Launch every kernel many times: all results must be equal in every bit, and memory must not grow.
///
/// Each kernel runs one round for each wait interval (1, 5, 10, 20, 25 and 50 launches, and one wait at the
/// end). The first rounds use one thread and one stream, the others several threads with several streams
/// each.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash soak                                       every kernel, 1000 launches per round
  ferroflash soak --config flashcore/64x32-persistent   one configuration, full and causal
  ferroflash soak --config v3/2 --launches 10 --device sim
  ferroflash soak --threads 8 --streams 4 --json")]
pub(super) struct Args {
    /// Launches per round.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    launches: u32,
    /// Number of threads in the rounds that use several threads.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Streams per thread.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    #[command(flatten)]
    kernels: KernelOptions,
}

/// The wait intervals, in launches.
const RHYTHMS: [usize; 7] = [1, 5, 10, 20, 25, 50, Soak::AT_THE_END];
/// Number of rounds per kernel. There is one round per wait interval, and one round with a single wait at the
/// end. Each of them runs from one thread, and from several threads.
const ROUNDS: usize = 2 * (1 + RHYTHMS.len());
/// Permitted growth of device memory from the first round to the last: the unit in which a driver allocates.
const DEVICE_GROWTH: i64 = 2 << 20;
/// Permitted growth of this process, because allocators keep freed memory. A leak of 4 KiB per launch exceeds
/// it.
const PROCESS_GROWTH: i64 = 32 << 20;

#[derive(Serialize)]
struct Report {
    device: String,
    seed: u64,
    launches_a_round: u32,
    threads: u32,
    streams: u32,
    passed: bool,
    seconds: f64,
    kernels: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// The reason why the kernel cannot run here.
    skipped: Option<String>,
    rounds: usize,
    launches: u64,
    differing: u64,
    /// Growth of device memory from the first round to the last, or `None` if it is unknown.
    device_growth_bytes: Option<i64>,
    process_growth_bytes: Option<i64>,
    failures: Vec<String>,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let subjects = args.kernels.subjects()?;
    let device = Device::open(&args.kernels.device, console)?;
    let runner = device.kernels("soak")?;
    device.affords(ROUNDS * args.launches as usize * subjects.len(), &args.kernels.device, console)?;
    let start = Instant::now();
    let bar = console.progress("soak", subjects.len());
    let (mut kernels, mut ran) = (vec![], Ok(()));
    for subject in subjects {
        let mut row = Row::new(subject, runner);
        if ran.is_ok() && row.skipped.is_none() && !ended::asked() {
            bar.set_message(row.name);
            ran = endure((runner, device.part()), subject, &args, &mut row);
        }
        kernels.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Args { launches, threads, streams, .. } = args;
    let said = ["failures", "kernels completed all their rounds"];
    let result = campaign::conclude(kernels.iter().map(Row::outcome), said, ran, &device);
    let report = Report {
        device: device.to_string(),
        seed: args.kernels.seed,
        launches_a_round: launches,
        threads,
        streams,
        passed: result.is_ok(),
        seconds: start.elapsed().as_secs_f64(),
        kernels,
    };
    console.report(&report, result)
}

impl Row {
    fn outcome(&self) -> Outcome<'_> {
        let (name, skipped) = (self.name.into(), self.skipped.as_deref());
        let (is_begun, left) = (self.rounds > 0, ROUNDS - self.rounds);
        Outcome { name, skipped, is_begun, left, failures: self.failures.clone() }
    }

    /// Returns a row before the first round. If the device cannot hold the kernel, no round will run.
    fn new(subject: &dyn Subject, runner: &Runner) -> Self {
        Row {
            name: subject.contract().symbol,
            skipped: reference::unfit(subject, runner.capabilities()),
            rounds: 0,
            launches: 0,
            differing: 0,
            device_growth_bytes: None,
            process_growth_bytes: None,
            failures: vec![],
        }
    }
}

/// Runs the rounds of one kernel in parts, until the program is asked to end.
fn endure(
    (runner, part): (&Runner, usize),
    subject: &dyn Subject,
    args: &Args,
    row: &mut Row,
) -> Result<(), Error> {
    let task = subject.soak(args.kernels.seed);
    let work = task.work();
    let launches = args.launches as usize;
    let round = |threads, streams, every| Soak { launches, every, threads, streams };
    let several = |every| round(args.threads as usize, args.streams as usize, every);
    // The round with the most threads runs first. Allocators keep the memory of that round, so it does not
    // count as growth.
    let rounds = [several(Soak::AT_THE_END), round(1, 1, Soak::AT_THE_END)].into_iter();
    let rounds = rounds.chain(RHYTHMS.map(|every| round(1, 1, every))).chain(RHYTHMS.map(several));
    let (mut device, mut process) = (vec![], vec![]);
    for (index, soak) in rounds.enumerate().take_while(|_| !ended::asked()) {
        let [launched, differing] = runner.soak(&*work, row.name, soak, part)?;
        row.rounds += usize::from(launched == launches);
        row.launches += launched as u64;
        row.differing += differing as u64;
        if differing > 0 {
            row.failures.push(format!("{task}: {differing} launches differ from the first; {soak}"));
        }
        if index > 0 {
            device.extend(runner.memory_in_use()?);
            process.extend(resident_bytes());
        }
    }
    row.device_growth_bytes = growth(&device);
    row.process_growth_bytes = growth(&process);
    let limits = [
        ("device memory", row.device_growth_bytes, DEVICE_GROWTH),
        ("this process's memory", row.process_growth_bytes, PROCESS_GROWTH),
    ];
    for (what, growth, limit) in limits {
        if let Some(growth) = growth.filter(|growth| *growth > limit) {
            row.failures.push(format!(
                "{what} grew by {growth} bytes over {} launches, allowed {limit}",
                row.launches
            ));
        }
    }
    Ok(())
}

/// Returns the difference between the last and the first number.
fn growth(bytes: &[u64]) -> Option<i64> {
    Some(*bytes.last()? as i64 - *bytes.first()? as i64)
}

/// Returns the resident memory of this process in bytes, if the system reports it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix("kB")?;
    Some(kib.trim().parse::<u64>().ok()? * 1024)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: Option<i64>| bytes.map_or("?".into(), |bytes| format!("{:+}", bytes / 1024));
        let rows = self.kernels.iter().map(|row| {
            let (device, process) = (kib(row.device_growth_bytes), kib(row.process_growth_bytes));
            let Row { rounds, launches, differing, .. } = row;
            let cells = format!("{rounds:>6}  {launches:>8}  {differing:>9}  {device:>10}  {process:>11}");
            (row.outcome(), cells)
        });
        let heading = ["kernel", "rounds  launches  differing  device KiB  process KiB"];
        campaign::table(f, heading, "WRONG", rows)?;
        let launches: u64 = self.kernels.iter().map(|row| row.launches).sum();
        let words = ["all agree in every bit", "FAILED"];
        let verdict = campaign::verdict(self.kernels.iter().map(Row::outcome), self.passed, words);
        let Report { threads, streams, device, seconds, .. } = self;
        writeln!(
            f,
            "{verdict}: {launches} launches from up to {threads} threads with {streams} streams each on \
             {device}, {seconds:.1} s{}",
            campaign::skipped(self.kernels.iter().map(Row::outcome))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_from_first_to_last() {
        assert_eq!((growth(&[]), growth(&[5]), growth(&[5, 9, 3])), (None, Some(0), Some(-2)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 16));
    }
}
