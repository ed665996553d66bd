//! `ferroflash run`: attention on a safetensors file.
use super::console::Console;
use super::device::Device;
use super::error::Error;
use super::files::{self, File, Stored};
use super::options::{DeviceKind, DeviceOptions, FileLayout, ScoreOptions};
use super::results::{Results, Took};
use ferroflash::plan::Problem;
use reference::{HostTensor, Layout, Memory, Reference, Verdict};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) mod cache;

/// Compute attention on the tensors `q`, `k`, `v` of a safetensors file, or on `q` and a cache.
///
/// Element type and sizes come from the file; `k` and `v` may have fewer heads than `q` (grouped-query
/// attention) and another length. The output file has `o`, shaped like `q`, and `lse`, the natural
/// log-sum-exp of each row: f32 [batch, heads, seqlen].
///
/// Packed sequences: `q`, `k`, `v` [rows of all sequences, heads, head_dim], with `cu_seqlens_q` and
/// `cu_seqlens_k` (i32, where each sequence begins, and where the last one ends), and maybe `seqused_k` (i32,
/// keys of each that exist); `lse` is then [heads, rows]. Rows that are no sequence's give 0 and -inf.
///
/// `alibi_slopes`, f32 [heads] or [batch, heads], let scores fall with the distance of key and query.
///
/// A cache is `k_cache` and `v_cache`, [pages, page, heads, head_dim] (with --layout bhsd [pages, heads,
/// page, head_dim]), and `seqused_k`, i32, the keys of each sequence. `block_table`, i32 [sequences,
/// columns], has the numbers of each one's pages; without it page b is sequence b's. `q` is then [T, heads,
/// head_dim], as many rows for each sequence, or from where to where `cu_seqlens_q` says; the last row of a
/// sequence stands at its last key, and `lse` is [heads, T]. `alibi_slopes` are as above. `sinks`, f32
/// [heads], are logits that belong to no key. A cache of e4m3 (F8_E4M3) may have `k_scale` and `v_scale`,
/// f32, one number or one for each key head: what its numbers are multiplied by. Sinks and e4m3 are for at
/// most 64 rows (of a sequence, times the query heads of a key head), as many for each, without slopes.
///
/// Tensors that are not for a file of its kind are refused; only `o` and `lse` may lie there unread.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash run --input demo/qkv.safetensors --output o.safetensors
  ferroflash run --input qkv.safetensors --output o.safetensors --layout bhsd --causal --check
  ferroflash run --input qkv.safetensors --output o.safetensors --window 1023,0 --softcap 50 --device gpu
  ferroflash run --input qkv.safetensors --check --device sim --profile a100 --json
  ferroflash run --input cache.safetensors --check     on q, k_cache, v_cache, seqused_k

Make an input in Python:
  safetensors.torch.save_file({\"q\": q, \"k\": k, \"v\": v}, \"qkv.safetensors\")   # float16 or bfloat16")]
pub(super) struct Args {
    /// File with q, k and v: f16 or bf16; a cache may be e4m3.
    #[arg(long, short)]
    input: PathBuf,
    /// File for o and lse; without it only the report is printed.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Order of the four sizes in the file.
    #[arg(long, value_enum, default_value_t)]
    layout: FileLayout,
    #[command(flatten)]
    scores: ScoreOptions,
    #[command(flatten)]
    device: DeviceOptions,
    /// The kernel to run, by a name in `ferroflash kernels`, instead of the planner's choice.
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
    /// Compare with the f64 reference; exit code 1 if it is outside of the tolerance.
    #[arg(long)]
    check: bool,
}

/// What a launch of attention was and how it came out.
#[derive(Serialize)]
pub(super) struct Report {
    device: String,
    kernel: Option<&'static str>,
    /// Why this kernel.
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
    pub max_error: f64,
    pub tolerance: f64,
    pub lse_max_error: Option<f64>,
    pub lse_tolerance: Option<f64>,
}

impl From<Verdict> for Check {
    fn from(verdict: Verdict) -> Self {
        Check {
            passed: verdict.passed(),
            max_error: verdict.out.error,
            tolerance: verdict.out.tolerance,
            lse_max_error: verdict.lse.map(|lse| lse.error),
            lse_tolerance: verdict.lse.map(|lse| lse.tolerance),
        }
    }
}

/// Tensors of packed sequences.
const PACKED: [&str; 7] = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "alibi_slopes"];

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let layout = Layout::from(args.layout);
    if args.check && args.device.kind()? == DeviceKind::Cpu {
        let what =
            "--check compares a kernel with the f64 reference, and --device cpu runs the reference itself";
        return Err(Error::Invalid(format!(
            "{what}; leave --check out, or use --device gpu or --device sim"
        )));
    }
    if let Some(output) = &args.output {
        files::differ(&args.input, output)?;
    }
    let file = File::read(&args.input)?;
    if file.has("k_cache") {
        return decode(&args, &file, console);
    }
    let [q, k, v] = files::read_qkv(&file)?;
    let (mut problem, is_packed) = (problem(layout, [&q, &k, &v])?, files::are_packed(&file));
    match is_packed {
        true => file.only("packed q, k, v", &PACKED)?,
        false => file.only("q, k, v of four sizes", &["q", "k", "v", "alibi_slopes"])?,
    }
    let rows = [q.shape[1], k.shape[1]];
    let sequences = is_packed.then(|| files::read_sequences(&file, rows)).transpose()?;
    if let Some(sequences) = &sequences {
        if layout == Layout::Bhsd {
            let needed = "packed sequences are [rows of all sequences, heads, head_dim]; leave it out";
            return Err(Error::Invalid(format!("--layout bhsd: {needed}")));
        }
        problem = sequences.problem(problem, rows);
    }
    let (problem, stored) = (args.scores.of(problem), q.shape);
    let slopes = files::read_slopes(&file, &problem)?;
    let memory = Memory::contiguous(problem, layout, [q.bits, k.bits, v.bits])
        .map_err(|e| Error::Invalid(e.to_string()))?;
    let memory = match slopes {
        Some(slopes) => memory.with_slopes(slopes),
        None => memory,
    };
    let memory = match sequences {
        Some(sequences) => memory.with_sequences(sequences),
        None => memory,
    };
    let device = Device::open(&args.device, console)?;
    attention(&device, &memory, args.config.as_deref(), args.check, console, |o, lse| {
        let Some(path) = &args.output else { return Ok(None) };
        // Packed tensors have no batch.
        let (first, lse_shape) = (usize::from(is_packed), memory.lse_shape());
        files::write_results(path, (problem.dtype, &stored[first..]), o, lse, &lse_shape[first..])?;
        Ok(args.output.clone())
    })
}

/// The same on a cache.
fn decode(args: &Args, file: &File<'_>, console: &Console) -> Result<(), Error> {
    let input = cache::Input::read(file, args.layout, &args.scores)?;
    let device = Device::open(&args.device, console)?;
    let waiting = console.waiting(format_args!("computing on {device}"));
    let result = match (device.runner(), args.config.as_deref()) {
        (Some(runner), config) => device.timed(runner.decode(&input, config)?),
        (None, Some(name)) => return Err(Device::has_no_kernel(name)),
        (None, None) => input.compute()?,
    };
    waiting.finish_and_clear();
    let verdict = args.check.then(|| input.judge(&result.o, &result.lse)).transpose();
    let verdict = verdict.map_err(|e| Error::Invalid(e.to_string()))?.flatten();
    if let Some(path) = &args.output {
        let shape = (input.problem.dtype, &input.shape[..]);
        files::write_results(path, shape, &result.o, &result.lse, &input.lse().0)?;
    }
    let problem = format!("{} on a cache", input.problem);
    conclude(&device, problem, &result, verdict, args.output.clone(), console)
}

/// Runs `memory` on `device`, hands O and LSE to `save`, and reports; with `check`, compares with the
/// reference first.
pub(super) fn attention(
    device: &Device,
    memory: &Memory,
    config: Option<&str>,
    check: bool,
    console: &Console,
    save: impl FnOnce(&[u16], &[f32]) -> Result<Option<PathBuf>, Error>,
) -> Result<(), Error> {
    let waiting = console.waiting(format_args!("computing on {device}"));
    let mut result = device.run(memory, config)?;
    memory.clear_unwritten(&mut result.o, &mut result.lse);
    waiting.finish_and_clear();
    let verdict = check.then(|| {
        let reference = Reference::new(&memory.inputs()?);
        let (all, [_, rows, ..]) = (memory.o, memory.written().shape);
        let o = HostTensor::new(&result.o, all.offset, memory.problem.dtype, all.shape, all.strides)?;
        Ok(reference.judge(&o.rows(0..rows), Some(&memory.written_lse(&result.lse))))
    });
    let verdict =
        verdict.transpose().map_err(|e: reference::TensorError| Error::Invalid(e.to_string()))?.flatten();
    let output = save(&result.o, &result.lse)?;
    conclude(device, memory.problem.to_string(), &result, verdict, output, console)
}

/// Reports what was computed, and ends as the verdict says.
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

/// The problem that the tensors of a file are.
fn problem(layout: Layout, [q, k, v]: [&Stored; 3]) -> Result<Problem, Error> {
    let sizes = |[a, b, c, d]: [usize; 4]| if layout == Layout::Bhsd { [a, c, b, d] } else { [a, b, c, d] };
    let ([batch, seqlen_q, heads_q, head_dim], [key_batch, seqlen_k, heads_k, key_dim]) =
        (sizes(q.shape), sizes(k.shape));
    for (name, tensor) in [("k", k), ("v", v)] {
        if tensor.dtype != q.dtype {
            let (got, want) = (tensor.dtype.name(), q.dtype.name());
            return Err(Error::Invalid(format!(
                "`{name}` is {got}, `q` is {want}: all three must have one type"
            )));
        }
    }
    for (what, keys, queries) in [("batch", key_batch, batch), ("head_dim", key_dim, head_dim)] {
        if keys != queries {
            return Err(Error::Invalid(format!(
                "`k` has {what} {keys}, `q` {queries}: both must have the same (shapes q {:?}, k {:?})",
                q.shape, k.shape
            )));
        }
    }
    if v.shape != k.shape {
        let what = format!("`v` has shape {:?}, `k` {:?}: both must have the same", v.shape, k.shape);
        return Err(Error::Invalid(what));
    }
    Ok(Problem::new(q.dtype, batch, seqlen_q, heads_q, head_dim).seqlen_k(seqlen_k).heads_k(heads_k))
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
            write!(f, "; before it inputs to the device {upload:.1} ms, loading the kernel {load:.1} ms")?;
        }
        match cpu {
            Some(cpu) => writeln!(f, "; it took this CPU {:.2} s", cpu / 1e3)?,
            None => writeln!(f)?,
        }
        self.reason.map_or(Ok(()), |reason| writeln!(f, "why this kernel: {reason}"))?;
        if let Some(check) = &self.check {
            let Check { passed, max_error, tolerance, .. } = check;
            let verdict = if *passed { "equal to the reference" } else { "WRONG" };
            match tolerance.is_finite() {
                true => writeln!(f, "{verdict}: largest error {max_error:.2e}, allowed {tolerance:.2e}")?,
                false => writeln!(f, "NOT JUDGED: largest error {max_error:.2e}, no bound for these inputs")?,
            }
        }
        match &self.output {
            Some(path) => writeln!(f, "wrote o and lse to {}", path.display()),
            None => Ok(()),
        }
    }
}
