//! `ferroflash run --grad`: attention and its gradients on a safetensors file.
use crate::console::Console;
use crate::device::Device;
use crate::error::Error;
use crate::files::{self, File};
use ferroflash::DType;
use ferroflash::request::RowOutputs;
use reference::{BackwardMemory, Judgement, Layout, Memory, Rule, Work, unguarded};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// The options of gradients.
#[derive(clap::Args)]
pub(in crate::run) struct Options {
    /// Also compute the gradients dq, dk and dv, which --output then has beside o and lse. FILE has the
    /// gradient of o as `do`, of o's shape and type, and may have the gradient of lse as `dlse`, f32 of lse's
    /// shape. With sinks, --output also has their gradient `dsinks`. In a build with the feature `training`.
    #[arg(long, value_name = "FILE")]
    grad: Option<PathBuf>,
    /// With --grad, also compute the gradient of the file's bias. --output then has it as `dbias`, of the
    /// bias' shape and type. If sequences or heads share the bias, dbias is the sum over them.
    #[arg(long, requires = "grad")]
    bias_grad: bool,
}

/// A forward and a backward launch.
#[derive(Serialize)]
struct Report {
    device: String,
    problem: String,
    /// The kernels of the forward and of the backward, each in launch order.
    kernels: [Vec<&'static str>; 2],
    /// Bytes of the backward's workspace.
    workspace_bytes: u64,
    /// The planner's reasons for both.
    reasons: [&'static str; 2],
    output: Option<PathBuf>,
    check: Option<Check>,
}

/// The judgement of O, LSE and the gradients.
#[derive(Serialize)]
struct Check {
    passed: bool,
    /// Whether the rule judges these inputs: it has a bound, or it proves an error.
    #[serde(skip)]
    is_judged: bool,
    /// The largest errors: of O and of the gradients.
    max_errors: [f64; 2],
    /// The largest quotients of an error and its tolerance.
    parts_of_tolerance: [f64; 2],
}

impl Options {
    /// Refuses an output that is the file of gradients, and an output of rows, which [`run`] does not write.
    pub(in crate::run) fn fit(&self, output: Option<&Path>, of_rows: Option<&str>) -> Result<(), Error> {
        let Some(grad) = &self.grad else { return Ok(()) };
        if let Some(asked) = of_rows {
            return Err(Error::Invalid(format!("{asked}: --grad does not write it; leave one of them out")));
        }
        output.map_or(Ok(()), |output| files::differ(grad, output))
    }

    /// Refuses gradients on a KV cache.
    pub(in crate::run) fn refuses_caches(&self) -> Result<(), Error> {
        let Some(path) = &self.grad else { return Ok(()) };
        let what = "the file has a `k_cache`, and attention on a KV cache has no gradients";
        Err(Error::Invalid(format!("--grad {}: {what}; leave --grad out", path.display())))
    }

    /// Returns whether the user asks for the gradient of the bias.
    pub(in crate::run) fn wants_bias(&self) -> bool {
        self.bias_grad
    }

    /// Returns the file with the gradients of outputs, if the user asks for gradients.
    pub(in crate::run) fn file(&self) -> Option<&Path> {
        self.grad.as_deref()
    }
}

/// This struct holds what the user asks for: a forward kernel, a check against the reference, a file.
pub(in crate::run) struct GradOptions<'a> {
    pub config: Option<&'a str>,
    pub check: bool,
    pub output: Option<&'a Path>,
    /// The gradient of the bias.
    pub bias: bool,
}

/// Computes attention and its gradients. `shapes` are those of o, q, k and v. The files of varlen tensors
/// have them without the batch.
pub(in crate::run) fn run(
    grad: &Path,
    memory: Memory,
    (shapes, is_varlen): ([[usize; 4]; 4], bool),
    layout: Layout,
    asked: &GradOptions<'_>,
    device: &Device,
    console: &Console,
) -> Result<(), Error> {
    let (dtype, lse_shape) = (memory.problem.dtype, memory.lse_shape());
    if asked.bias && memory.extras.bias.is_none() {
        let what = "--bias-grad: the file has no tensor `bias`; leave --bias-grad out";
        return Err(Error::Invalid(what.into()));
    }
    let first = usize::from(is_varlen);
    let (d_o, d_lse) = upstream(&File::read(grad)?, dtype, &shapes[0][first..], &lse_shape[first..])?;
    let Some(runner) = device.runner() else {
        let what = "--grad: --device cpu computes no gradients; use --device gpu or --device sim";
        return Err(Error::Invalid(what.into()));
    };
    let waiting = console.waiting(format_args!("computing on {device}"));
    let launch = |work: &dyn Work, config| {
        let rounds = runner.run(work, config).map_err(|e| device.explained(e, config, work))?;
        rounds.into_iter().next().ok_or_else(|| Error::Invalid("no launch ran".into()))
    };
    let forward = launch(&memory, asked.config)?;
    let [o, lse] = [0, 1].map(|output| unguarded(&forward.outputs[output]));
    let (mut o, lse) = (halves(o), lse.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect());
    let mut rows = RowOutputs::from(Some(lse));
    memory.clear_unwritten(&mut o, &mut rows);
    let lse = rows.lse.unwrap_or_default();
    let problem = memory.problem.to_string();
    let mut work = BackwardMemory::of(memory, [o, d_o], lse, d_lse, layout);
    work.dbias = asked.bias;
    let backward = launch(&work, None)?;
    waiting.finish_and_clear();
    let judged = |work: &dyn Work, written| {
        let judge = work.judge(Rule::Tolerance)?;
        Ok::<Judgement, Error>(judge(0, written))
    };
    let judgements = match asked.check {
        true => Some([judged(&work.forward, &forward)?, judged(&work, &backward)?]),
        false => None,
    };
    if let Some(path) = asked.output {
        let o = work.o.iter().flat_map(|x| x.to_le_bytes()).collect();
        let gradients = (0..3).map(|of| work.gradient(of, &backward));
        let all: Vec<Vec<u8>> = std::iter::once(o).chain(gradients).collect();
        let tensors = ["o", "dq", "dk", "dv"].into_iter().zip(&shapes).zip(&all);
        let tensors = tensors.map(|((name, shape), all)| (name, dtype, &shape[first..], &all[..]));
        let lse: Vec<u8> = work.lse.iter().flat_map(|x| x.to_le_bytes()).collect();
        let lse = ("lse", DType::F32, &lse_shape[first..], &lse[..]);
        let dsinks = work.dsinks(&backward);
        let dsinks = dsinks.map(|all| ("dsinks", DType::F32, &lse_shape[1..2], unguarded(all)));
        let dbias = work.dbias(&backward);
        let dbias = dbias.iter().map(|(dtype, shape, all)| ("dbias", *dtype, &shape[..], &all[..]));
        files::write_tensors(path, tensors.chain([lse]).chain(dsinks).chain(dbias))?;
    }
    let all = judgements.iter().flatten().cloned().fold(Judgement::default(), Judgement::and);
    let is_judged = all.unbounded == 0 || all.failures.len() > all.unbounded;
    let verified = match (all.failures.into_iter().next(), is_judged) {
        (None, _) => Ok(()),
        (Some(failure), true) => Err(Error::Wrong(failure)),
        (Some(why), false) => {
            let named = work.not_finite().map(|name| format!("; {name} has an infinity or a NaN"));
            Err(Error::Invalid(format!("--check: {why}{}", named.unwrap_or_default())))
        }
    };
    let check = judgements.as_ref().map(|both| Check {
        passed: verified.is_ok(),
        is_judged,
        max_errors: [0, 1].map(|of| both[of].max_error),
        parts_of_tolerance: [0, 1].map(|of| both[of].worst_ratio),
    });
    let report = Report {
        device: device.to_string(),
        problem,
        workspace_bytes: backward.workspace,
        kernels: [forward.kernels, backward.kernels],
        reasons: [forward.reason, backward.reason],
        output: asked.output.map(Path::to_owned),
        check,
    };
    console.report(&report, verified)
}

fn halves(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks().0.iter().map(|x| u16::from_le_bytes(*x)).collect()
}

/// Reads the gradients of O and of the LSE.
fn upstream(
    file: &File<'_>,
    dtype: DType,
    shape: &[usize],
    lse_shape: &[usize],
) -> Result<(Vec<u16>, Option<Vec<f32>>), Error> {
    if !file.has("do") {
        return Err(file.invalid("has no tensor `do`, the gradient of o; a file of --grad needs it"));
    }
    file.only("gradients of outputs", &["do", "dlse"])?;
    let read = |name: &str, of: &str, dtype: DType, shape: &[usize]| {
        let elements = file.elements(name, &[dtype])?;
        if elements.shape != shape {
            let got = &elements.shape;
            return Err(
                file.invalid(format_args!("`{name}` has shape {got:?}; it must be {of}'s, {shape:?}"))
            );
        }
        Ok::<_, Error>(elements)
    };
    let d_o = read("do", "o", dtype, shape)?.halves();
    let d_lse = file.has("dlse").then(|| read("dlse", "lse", DType::F32, lse_shape)).transpose()?;
    let d_lse = d_lse.map(|all| all.bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect());
    Ok((d_o, d_lse))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.problem)?;
        let [forward, backward] = [0, 1].map(|of| self.kernels[of].join(", "));
        writeln!(f, "on {} with {forward}", self.device)?;
        writeln!(f, "gradients by {backward}; {} bytes of workspace", self.workspace_bytes)?;
        writeln!(f, "why these kernels: {}; {}", self.reasons[0], self.reasons[1])?;
        if let Some(Check { passed, is_judged, max_errors, parts_of_tolerance }) = &self.check {
            let verdict = match (is_judged, passed) {
                (false, _) => "NOT JUDGED",
                (true, true) => "within tolerance of the reference",
                (true, false) => "WRONG",
            };
            let [o, gradients] = max_errors;
            write!(f, "{verdict}: largest error {o:.2e} of o, {gradients:.2e} of gradients; ")?;
            let most = parts_of_tolerance[0].max(parts_of_tolerance[1]);
            match is_judged {
                true => writeln!(f, "at most {:.0} % of what is allowed", most * 100.0)?,
                false => writeln!(f, "these inputs have no bound")?,
            }
        }
        match &self.output {
            Some(path) => writeln!(f, "wrote the outputs and gradients to {}", path.display()),
            None => Ok(()),
        }
    }
}
