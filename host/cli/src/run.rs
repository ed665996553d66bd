//! `ferroflash run`: attention on a safetensors file.
use super::console::Console;
use super::device::Device;
use super::error::Error;
use super::files::{self, File};
use super::options::{DeviceKind, DeviceOptions, FileLayout, ScoreOptions};
use super::results::{Results, Took};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::Precision;
use ferroflash::spec::EXTRAS;
use reference::{HostTensor, Layout, Memory, Reference, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub(super) mod cache;
mod extras;
mod grad;
mod sizes;

/// Compute attention on the tensors of a safetensors file.
///
/// The file has q, k and v of equal sequence lengths, or q, k and v of varlen sequences, or q and a KV cache.
/// `ferroflash run --help` lists the tensors of each. Element type and sizes come from the file. k and v may
/// have fewer heads than q (grouped-query attention), and v another head_dim than q and k. The output file
/// has o with the shape of q and the head_dim of v, and lse: the natural log-sum-exp (LSE) of each row, f32.
#[derive(clap::Args)]
#[command(after_long_help = include_str!("run/help.txt"))]
pub(super) struct Args {
    /// The safetensors file to read.
    #[arg(long, short)]
    input: PathBuf,
    /// The safetensors file to write o and lse to. Without it the program only prints its report.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Order of the four dimensions of q, k, v and o in the file. In a file with a KV cache, order of the
    /// dimensions of k_cache and v_cache; q, o and scales keep theirs.
    #[arg(long, value_enum, default_value_t)]
    layout: FileLayout,
    #[command(flatten)]
    grad: grad::Options,
    #[command(flatten)]
    scores: ScoreOptions,
    #[command(flatten)]
    device: DeviceOptions,
    /// Run the kernel of this name (`ferroflash kernels` lists them) instead of the planner's choice.
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
    /// The file's KV cache is a latent cache (MLA): its values are the first V columns of `k_cache`.
    #[arg(long, value_name = "V")]
    v_width: Option<usize>,
    /// Sequences of the file's KV cache share their first PAGES pages, which the launch reads once per group.
    #[arg(long, value_name = "PAGES")]
    shared_pages: Option<usize>,
    /// With --shared-pages: the number of groups of equal numbers of consecutive sequences. Each group shares
    /// its own pages [default: 1].
    #[arg(long, value_name = "N", requires = "shared_pages")]
    prefix_groups: Option<usize>,
    /// Also write max_logits and max_logits_head: the largest score of each row, and of each head.
    #[arg(long)]
    max_logits: bool,
    /// Also write entropy: of each row's probabilities over keys, without sinks, in nats.
    #[arg(long)]
    entropy: bool,
    /// Element type of o if q, k and v are F8_E4M3 [default: bf16]. Otherwise o has the type of q.
    #[arg(long, value_enum, value_name = "TYPE")]
    output_dtype: Option<OutputType>,
    /// Compare the result with the f64 reference. The exit code is 1 if it is outside the tolerance.
    #[arg(long)]
    check: bool,
}

/// The element type of o.
#[derive(Clone, Copy, clap::ValueEnum)]
enum OutputType {
    F16,
    Bf16,
}

impl Args {
    /// Returns the problem with the element type of o, and with the precision of e4m3 tensors.
    fn of_output(&self, problem: Problem) -> Result<Problem, Error> {
        match (problem.dtype, self.output_dtype) {
            (DType::E4m3, asked) => {
                let dtype = if matches!(asked, Some(OutputType::F16)) { DType::F16 } else { DType::Bf16 };
                let is_plain = problem.precision == Precision::Inputs;
                let precision = if is_plain { Precision::Fp8 } else { problem.precision };
                Ok(problem.o_dtype(dtype).precision(precision))
            }
            (_, None) => Ok(problem),
            (dtype, Some(_)) => {
                let what = "--output-dtype: only q, k and v of F8_E4M3 have an o of another type";
                Err(Error::Invalid(format!("{what}, and these are {}; leave it out", dtype.name())))
            }
        }
    }

    /// Returns the number of groups that share pages, and the number of their pages.
    fn shared(&self) -> Option<[usize; 2]> {
        self.shared_pages.map(|pages| [self.prefix_groups.unwrap_or(1), pages])
    }
}

/// A launch of attention and its result.
#[derive(Serialize)]
pub(super) struct Report {
    device: String,
    kernel: Option<&'static str>,
    /// The planner's reason for this kernel.
    reason: Option<&'static str>,
    problem: String,
    milliseconds: Took,
    output: Option<PathBuf>,
    check: Option<Check>,
}

/// A verdict for a report.
#[derive(Serialize)]
pub(super) struct Check {
    pub passed: bool,
    /// The error of the element of O that is worst relative to its tolerance.
    pub max_error: f64,
    pub tolerance: f64,
    /// The largest error and the tolerance of each output of rows.
    #[serde(flatten)]
    pub rows: BTreeMap<String, Option<f64>>,
}

impl From<Verdict> for Check {
    fn from(verdict: Verdict) -> Self {
        let of_rows = verdict.rows.named().flat_map(|(name, worst)| {
            let error = (format!("{name}_max_error"), worst.map(|worst| worst.error));
            [error, (format!("{name}_tolerance"), worst.map(|worst| worst.tolerance))]
        });
        Check {
            passed: verdict.passed(),
            max_error: verdict.out.error,
            tolerance: verdict.out.tolerance,
            rows: of_rows.collect(),
        }
    }
}

/// The tensors of a file without a KV cache: sequences of equal lengths, or varlen sequences.
const DENSE: [&str; 7] = ["q", "k", "v", "alibi_slopes", "q_descale", "k_descale", "v_descale"];
const VARLEN: [&str; 8] =
    ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "alibi_slopes"];

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let layout = Layout::from(args.layout);
    if args.check && args.device.kind()? == DeviceKind::Cpu {
        let what = "--check compares a kernel with the f64 reference; --device cpu runs the reference itself";
        return Err(Error::Invalid(format!(
            "{what}; leave --check out, or use --device gpu or --device sim"
        )));
    }
    if let Some(output) = &args.output {
        files::differ(&args.input, output)?;
    }
    let of_rows = [("--max-logits", args.max_logits), ("--entropy", args.entropy)];
    let of_rows = of_rows.into_iter().find_map(|(name, asked)| asked.then_some(name));
    args.grad.fit(args.output.as_deref(), of_rows)?;
    let file = File::read(&args.input)?;
    if let Some(what) = of_rows.filter(|_| file.has("k_cache")) {
        let remedy = "the program writes it for tensors only; leave it out for a file with `k_cache`";
        return Err(Error::Invalid(format!("{what}: {remedy}")));
    }
    if file.has("k_cache") {
        args.grad.refuses_caches()?;
        if args.output_dtype.is_some() {
            let what = "--output-dtype: o of a KV cache has the type of q; leave it out";
            return Err(Error::Invalid(what.to_owned()));
        }
        return decode(&args, &file, console);
    }
    if let Some(width) = args.v_width {
        let what =
            format_args!("--v-width {width}: only a latent cache has a width, and the file has no `k_cache`");
        return Err(Error::Invalid(format!("{what}; leave --v-width out")));
    }
    if let Some(pages) = args.shared_pages {
        let what =
            format_args!("--shared-pages {pages}: the file has no `k_cache`, whose pages sequences share");
        return Err(Error::Invalid(format!("{what}; leave --shared-pages out")));
    }
    let [q, k, v] = files::read_qkv(&file)?;
    let (mut problem, is_varlen) = (sizes::problem(layout, [&q, &k, &v])?, files::are_varlen(&file));
    match is_varlen {
        true => file.only("varlen q, k, v", &[&VARLEN[..], &extras::NAMES, &extras::DESCALES].concat())?,
        false => file.only("q, k, v of equal lengths", &[&DENSE[..], &extras::NAMES].concat())?,
    }
    let rows = [q.shape[1], k.shape[1]];
    let sequences = is_varlen.then(|| sizes::sequences(&file, rows)).transpose()?;
    let mut of_file = problem;
    if let Some([sequences, divided]) = &sequences {
        if layout == Layout::Bhsd {
            let needed = "varlen tensors are [rows, heads, head_dim]; leave --layout out";
            return Err(Error::Invalid(format!("--layout bhsd: {needed}")));
        }
        (of_file, problem) = (sequences.problem(problem, rows), divided.problem(problem, rows));
    }
    let [.., columns] = v.shape;
    let (problem, mut stored) = (args.of_output(args.scores.of(problem))?, q.shape);
    stored[3] = columns;
    let stated = problem.batch(of_file.batch).seqlen_q(of_file.seqlen_q);
    let extras = extras::read(&file, &stated, problem.seqlen_k, &args.scores)?;
    let problem = extras.of(problem);
    let memory = Memory::contiguous(problem, layout, [q.bits, k.bits, v.bits])?;
    let memory = sequences.into_iter().fold(memory, |memory, [_, divided]| memory.with_sequences(divided));
    let mut memory = memory.with_extras(extras);
    (memory.rows.max_logits, memory.head_maxima) = (args.max_logits, args.max_logits);
    (memory.rows.entropy, memory.padded) = (args.entropy, file.has("seqused_q"));
    let device = Device::open(&args.device, console)?;
    if let Some(file) = args.grad.file() {
        let (config, output) = (args.config.as_deref(), args.output.as_deref());
        let asked = grad::GradOptions { config, check: args.check, output, bias: args.grad.wants_bias() };
        let shapes = [stored, q.shape, k.shape, v.shape];
        return grad::run(file, memory, (shapes, is_varlen), layout, &asked, &device, console);
    }
    attention(&device, &memory, args.config.as_deref(), args.check, console, |results| {
        let Some(path) = &args.output else { return Ok(None) };
        // Varlen tensors have no batch.
        let (first, shape) = (usize::from(is_varlen), memory.lse_shape());
        files::write_results(path, (problem.o_dtype, &stored[first..]), results, &shape[first..])?;
        Ok(args.output.clone())
    })
}

/// Computes attention on a KV cache.
fn decode(args: &Args, file: &File<'_>, console: &Console) -> Result<(), Error> {
    let input = cache::Input::read(file, args.layout, &args.scores, args.v_width, args.shared())?;
    if args.check {
        input.can_be_judged()?;
    }
    let device = Device::open(&args.device, console)?;
    let waiting = console.waiting(format_args!("computing on {device}"));
    let result = match (device.runner(), args.config.as_deref()) {
        (Some(runner), config) => {
            let run = runner.decode(&input, config).map_err(|e| device.explained(e, config, &input));
            device.timed(run?)
        }
        (None, Some(name)) => return Err(Device::has_no_kernel(name)),
        (None, None) => input.compute()?,
    };
    waiting.finish_and_clear();
    let verdict = match args.check {
        true => input.judge(&result.o, result.rows.lse.as_deref().unwrap_or(&[]))?,
        false => None,
    };
    if let Some(path) = &args.output {
        let shape = input.o_shape();
        files::write_results(path, (input.problem.dtype, &shape), &result, &input.lse().0)?;
    }
    let problem = format!("{} on a cache", input.problem);
    conclude(&device, problem, &result, verdict, args.output.clone(), console)
}

/// Runs `memory` on `device`, passes O and outputs of rows to `save`, and reports. `check` compares with the
/// reference before the report.
pub(super) fn attention(
    device: &Device,
    memory: &Memory,
    config: Option<&str>,
    check: bool,
    console: &Console,
    save: impl FnOnce(&Results) -> Result<Option<PathBuf>, Error>,
) -> Result<(), Error> {
    if let Some(name) = config.filter(|name| EXTRAS.iter().any(|e| e.contract.symbol == *name)) {
        let kernels = "it runs beside kernels of attention; name one of these (`ferroflash kernels`)";
        return Err(Error::Invalid(format!("--config {name}: {kernels}")));
    }
    let waiting = console.waiting(format_args!("computing on {device}"));
    let mut result = device.run(memory, config)?;
    memory.clear_unwritten(&mut result.o, &mut result.rows);
    waiting.finish_and_clear();
    let verdict = if check { judge(memory, &result)? } else { None };
    let output = save(&result)?;
    conclude(device, memory.problem.to_string(), &result, verdict, output, console)?;
    match (&result.head_maxima, &result.rows.max_logits) {
        (Some(found), Some(rows)) if check => of_rows(found, &memory.largest_of_heads(rows)),
        _ => Ok(()),
    }
}

/// Checks that the largest scores of heads are exactly the largest of their rows.
fn of_rows(found: &[f32], rows: &[f32]) -> Result<(), Error> {
    let differs = |(found, of_rows): (&f32, &f32)| found != of_rows;
    match found.iter().zip(rows).position(differs) {
        None => Ok(()),
        Some(head) => Err(Error::Wrong(format!(
            "max_logits_head[{head}] is {}; the largest max_logits of this head's rows is {}",
            found[head], rows[head]
        ))),
    }
}

/// Compares results with the reference.
fn judge(memory: &Memory, result: &Results) -> Result<Option<Verdict>, Error> {
    let reference = Reference::new(&memory.inputs()?);
    let (all, [_, rows, ..]) = (memory.o, memory.written().shape);
    let o = HostTensor::new(&result.o, all.offset, memory.problem.o_dtype, all.shape, all.strides)?;
    let written = |_, values: &Option<Vec<f32>>| values.as_deref().map(|all| memory.written_values(all));
    let values = result.rows.as_ref().map(written);
    Ok(reference.judge_rows(&o.rows(0..rows), values.as_ref().map(|_, values| values.as_deref())))
}

/// Prints the report and returns the verdict.
fn conclude(
    device: &Device,
    problem: String,
    result: &Results,
    verdict: Option<Verdict>,
    output: Option<PathBuf>,
    console: &Console,
) -> Result<(), Error> {
    let failure = verdict.and_then(|verdict| Some((verdict.failures().next()?, verdict.is_bounded())));
    let verified = match failure {
        Some((failure, true)) => Err(Error::Wrong(failure)),
        Some((why, false)) => Err(Error::Invalid(format!("--check: {why}"))),
        None => Ok(()),
    };
    let report = Report {
        device: device.to_string(),
        kernel: result.kernel,
        reason: result.reason,
        problem,
        milliseconds: result.took,
        output,
        check: verdict.map(Check::from),
    };
    console.report(&report, verified)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.problem)?;
        let Took { upload, load, kernel, cpu } = self.milliseconds;
        write!(f, "on {} with {}", self.device, self.kernel.unwrap_or("no kernel"))?;
        if let Some(file) = self.kernel.and_then(ferroflash::ptx::replacement) {
            write!(f, " from {}", file.display())?;
        }
        if let Some(kernel) = kernel {
            write!(f, ": {kernel:.3} ms")?;
        }
        if let (Some(upload), Some(load), None) = (upload, load, cpu) {
            write!(f, "; before the launch: inputs to the device {upload:.1} ms, kernel load {load:.1} ms")?;
        }
        match cpu {
            Some(cpu) => writeln!(f, "; {:.2} s on this CPU", cpu / 1e3)?,
            None => writeln!(f)?,
        }
        self.reason.map_or(Ok(()), |reason| writeln!(f, "why this kernel: {reason}"))?;
        if let Some(check) = &self.check {
            let Check { passed, max_error, tolerance, .. } = check;
            let verdict = if *passed { "within tolerance of the reference" } else { "WRONG" };
            match tolerance.is_finite() {
                true => writeln!(f, "{verdict}: error {max_error:.2e} of {tolerance:.2e} allowed, at worst")?,
                false => {
                    writeln!(f, "NOT JUDGED: largest error {max_error:.2e}; these inputs have no bound")?
                }
            }
        }
        match &self.output {
            Some(path) => writeln!(f, "wrote the outputs to {}", path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::of_rows;

    #[test]
    fn a_wrong_largest_score_of_a_head_is_noticed() {
        assert!(of_rows(&[2.0, f32::NEG_INFINITY], &[2.0, f32::NEG_INFINITY]).is_ok());
        for wrong in [2.5, f32::NEG_INFINITY, f32::NAN] {
            let error = of_rows(&[1.0, wrong], &[1.0, 2.0]).expect_err("a wrong number");
            assert!(error.to_string().starts_with("max_logits_head[1] is "), "{error}");
        }
    }
}
