//! `ferroflash fuzz`: random problems for a given time.
use super::campaign::verdict_of;
use super::console::Console;
use super::device::Device;
use super::ended;
use super::error::Error;
use super::options::DeviceOptions;
use ferroflash::DType;
use ferroflash::request::Precision;
use ferroflash::spec::{Entry, LayFp8, LayInt8Pages};
use reference::fuzz::{Findings, Fuzz, Limits, families, faults, refused};
use reference::{ENOUGH_ELEMENTS, Random, lacks_kernel, score_limit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Compare random problems with the f64 reference, and check that faulty requests are rejected.
///
/// Each case has two problems: one attention problem, and one of another family (varlen, decode and prefill
/// on KV caches of 16 and 8 bits, append, merge; in a build with the feature `training` gradients). The
/// second problem launches one plan several times; the integers on the device change between the launches
/// and become invalid, too.
///
/// Shapes, strides, gaps, masks, scale, softcap, inputs, element type and kernel are random. A valid problem
/// must match the reference and write nothing else. The same problem with one fault must be rejected with an
/// error that names the fault. The program stops at the first failure and prints how to repeat it.
///
///   problems                         error bound of an element of O
///   two of three                     2 * max|naive - reference| + 1e-5, as in `verify`
///   of these, below 16,384 elements  that, or two roundings of the largest value + 1e-5
///   one of three, with inputs, scale
///   and softcap of any magnitude     the bound of f32 sums and of roundings to the type
///
/// Rows with a scaled and capped score (times log2 e) of 2^28 or more in f16, or 2^31 or more in bf16, are
/// not judged. Rows with sums that overflow f32 are not judged either. The report counts both.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  ferroflash fuzz --seconds 300                    five minutes on the GPU
  ferroflash fuzz --seconds 30 --device sim        in the simulator, every access checked
  ferroflash fuzz --case 1234567890                repeat one case
  ferroflash fuzz --seconds 60 --seed 7 --json"
)]
pub(super) struct Args {
    /// Seconds to run; more if no problem is solved in this time.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Seed of the cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only the case with this number.
    #[arg(long)]
    case: Option<u64>,
    /// Draw the scale, softcap and inputs of one problem in three from 10^-N to 10^N. 0 turns this off.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u8).range(0..=30))]
    decades: u8,
    #[command(flatten)]
    device: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    seed: u64,
    passed: bool,
    seconds: f64,
    #[serde(flatten)]
    counts: Counts,
    small_rule: String,
    wide_rule: String,
    failure: Option<String>,
    /// Whether this build lacks the kernels of all problems that were drawn.
    #[serde(skip)]
    nothing_ran: bool,
}

#[derive(Default, Serialize)]
struct Counts {
    /// The number of valid attention problems that were compared with the reference.
    solved: u64,
    /// The number of problems that were left out, because this build carries only a sample of the kernels.
    left_out: u64,
    /// The number of cases of each other family. Each case has several launches of one plan.
    others: BTreeMap<&'static str, u64>,
    /// The number of problems with few elements, which `small_rule` judged.
    small: u64,
    /// The number of problems of any magnitude, which `wide_rule` judged.
    wide: u64,
    /// The number of rows of O in the problems of any magnitude.
    wide_rows: usize,
    /// The number of rows that `wide_rule` does not judge.
    rows_not_judged: usize,
    /// Number of refusals by fault.
    refused: BTreeMap<&'static str, u64>,
}

/// Returns the findings of a problem without failures. Returns `None` if this build lacks the problem's
/// kernel.
fn judged(ran: Result<Findings, ferroflash::Error>) -> Result<Option<Findings>, String> {
    let findings = match ran {
        Err(error) if lacks_kernel(&error) => return Ok(None),
        ran => ran.map_err(|error| error.to_string())?,
    };
    match findings.failures.first() {
        Some(wrong) => Err(wrong.clone()),
        None => Ok(Some(findings)),
    }
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    ended::listen();
    let device = Device::open(&args.device, console)?;
    let runner = device.kernels("fuzz")?;
    let capabilities = runner.capabilities();
    let limits = if capabilities.name.contains("simulated") { Limits::SIMULATOR } else { Limits::GPU };
    // These kernels run where the products of e4m3 do.
    let of_e4m3 = [
        (<LayInt8Pages<4, 4> as Entry>::CONTRACT, Precision::Int8Fp8),
        (<LayFp8<8, 4> as Entry>::CONTRACT, Precision::Fp8),
    ];
    let of_e4m3 = of_e4m3.into_iter().find(|(kernel, _)| capabilities.runs(kernel).is_ok());
    let of_e4m3 = of_e4m3.map(|(_, precision)| precision);
    let limits = Limits { decades: args.decades, of_e4m3, ..limits };
    let (start, time) = (Instant::now(), Duration::from_secs(args.seconds));
    let bar = console.progress("fuzz, seconds", args.seconds as usize);
    let mut random = Random::new(args.seed);
    let refusals = faults().map(|name| (name, 0)).collect();
    let others = families().map(|name| (name, 0)).collect();
    let (mut counts, mut failure) = (Counts { refused: refusals, others, ..Counts::default() }, None);
    // The command solves at least one problem, however short the time is, unless this build lacks the
    // kernels.
    let is_due = |all: &Counts| start.elapsed() < time || (all.solved == 0 && all.left_out < 1000);
    while failure.is_none() && is_due(&counts) && !ended::asked() {
        let seed = args.case.unwrap_or_else(|| random.bits());
        let fuzz = Fuzz::new(seed, limits, capabilities);
        bar.set_position(start.elapsed().as_secs());
        bar.set_message(format!("{} problems", counts.solved));
        match judged(runner.fuzz(&fuzz)) {
            Ok(Some(findings)) => {
                counts.wide += u64::from(fuzz.wide.is_some());
                counts.wide_rows += if fuzz.wide.is_some() { findings.rows } else { 0 };
                counts.rows_not_judged += findings.not_judged;
                counts.solved += 1;
                counts.small += u64::from(fuzz.wide.is_none() && fuzz.is_small);
            }
            Ok(None) => counts.left_out += 1,
            Err(wrong) => failure = Some(format!("{fuzz}: {wrong}")),
        }
        if failure.is_none() {
            let other = Fuzz::other(seed, limits);
            match judged(runner.fuzz(&other)) {
                Ok(Some(_)) => *counts.others.entry(other.family.unwrap_or_default()).or_default() += 1,
                Ok(None) => counts.left_out += 1,
                Err(wrong) => failure = Some(format!("{other}: {wrong}")),
            }
        }
        // A refusal needs no device and takes little time, so each solved problem comes with many refusals.
        for fault in 0..16 {
            match refused(&fuzz, seed.wrapping_add(fault), capabilities) {
                Ok(name) => *counts.refused.entry(name).or_default() += 1,
                Err(wrong) => failure = failure.or(Some(wrong)),
            }
        }
        if args.case.is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    let Counts { solved, left_out, .. } = counts;
    let is_whole = if args.case.is_some() { solved + left_out > 0 } else { !is_due(&counts) };
    let early =
        (ended::asked() && !is_whole).then(|| ended::error(&format!("{solved} problems were solved")));
    let result = match (&failure, early) {
        (Some(failure), _) => Err(Error::Wrong(failure.clone())),
        (None, Some(early)) => Err(early),
        (None, None) if solved == 0 => Err(Error::Invalid(format!(
            "no problem was solved: this build lacks the kernels of all {left_out} that were drawn"
        ))),
        (None, None) => Ok(()),
    };
    let report = Report {
        device: device.to_string(),
        seed: args.seed,
        passed: result.is_ok(),
        seconds: start.elapsed().as_secs_f64(),
        counts,
        small_rule: format!(
            "with fewer than {ENOUGH_ELEMENTS} elements of O, the largest error of a naive result may be \
             small by luck, so an element may also be off by two roundings of the largest value plus 1e-5"
        ),
        wide_rule: format!(
            "an element may be off by the error of f32 sums plus roundings to the type; a row is not judged \
             if a score (scaled, capped, times log2 e) reaches 2^{} in f16 or 2^{} in bf16, or if sums \
             overflow f32",
            score_limit(DType::F16).log2(),
            score_limit(DType::Bf16).log2()
        ),
        failure,
        nothing_ran: matches!(result, Err(Error::Invalid(_))),
    };
    console.report(&report, result)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { device, seed, seconds, counts, small_rule, wide_rule, failure, .. } = self;
        let Counts { solved, left_out, others, small, wide, wide_rows, rows_not_judged, refused } = counts;
        let refusals: u64 = refused.values().sum();
        let kinds = refused.values().filter(|count| **count > 0).count();
        let verdict =
            verdict_of(self.passed, failure.is_some(), self.nothing_ran, ["all agree", "NOT ALL AGREE"]);
        writeln!(
            f,
            "{verdict}: {solved} random problems agree with the reference on {device}, seed {seed}, \
             {seconds:.1} s"
        )?;
        let others = others.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>();
        writeln!(f, "and {} of other families", others.join(", "))?;
        if *left_out > 0 {
            writeln!(f, "{left_out} problems were left out: this build lacks their kernels")?;
        }
        writeln!(f, "{small} of these problems are small: {small_rule}")?;
        writeln!(f, "{wide} of these problems have inputs of any magnitude: {wide_rule}")?;
        writeln!(f, "{rows_not_judged} of their {wide_rows} rows were not judged")?;
        writeln!(
            f,
            "{refusals} requests with one of {kinds} faults were refused with an error that names the fault"
        )?;
        match failure {
            Some(failure) => writeln!(f, "WRONG {failure}\nrepeat it with --case"),
            None => Ok(()),
        }
    }
}
