//! `ferroflash info`: the devices, and the kernels that the planner selects.
use super::console::Console;
use super::device::{Device, Runner};
use super::error::Error;
use super::options::{DeviceKind, DeviceOptions, dtype};
use ferroflash::plan::{Problem, explain, plan};
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask, Scratch, TensorView};
use ferroflash::spec::{Class, GRADIENTS, Isa, KERNELS, head_dims, plain};
use ferroflash::{Capabilities, DType, ptx};
use serde::Serialize;
use std::fmt;

/// Show the GPU, its driver and limits, and the kernels that would run for common problems.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash info
  ferroflash info --device sim --profile a100
  ferroflash info --seqlen 4096 --heads 32 --batch 2 --dtype bf16 --json")]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceOptions,
    /// Batch size of the problems.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Number of queries and of keys per sequence.
    #[arg(long, default_value_t = 2048)]
    seqlen: usize,
    /// Number of query heads and of key heads.
    #[arg(long, default_value_t = 16)]
    heads: usize,
    /// Dtype: f16 or bf16.
    #[arg(long, default_value = "f16", value_parser = dtype)]
    dtype: DType,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    /// Number of kernels that this build embeds.
    embedded_kernels: usize,
    kernels: usize,
    gpu: Option<String>,
    /// The reason why there is no GPU, if the command could have used one.
    no_gpu: Option<String>,
    /// The device that `--device` selects.
    device: String,
    limits: Option<Limits>,
    problems: String,
    would_run: Vec<Choice>,
}

/// The limits of a card.
#[derive(Serialize)]
pub(super) struct Limits {
    compute_capability: String,
    sms: u32,
    shared_memory_per_block_bytes: u32,
    shared_memory_per_sm_bytes: u32,
    registers_per_sm: u32,
    l2_bytes: u64,
    memory_bytes: u64,
}

#[derive(Serialize)]
struct Choice {
    head_dim: usize,
    mask: &'static str,
    kernel: Option<&'static str>,
    /// The planner's reason for this kernel.
    reason: Option<&'static str>,
    refused: Option<String>,
    /// The launch of the gradients, if this build has their kernels.
    gradients: Option<Gradients>,
}

/// The kernels of gradients in launch order, or the reason why there are none.
#[derive(Serialize)]
struct Gradients {
    kernels: Vec<&'static str>,
    /// The planner's reason for these kernels, or its refusal.
    reason: String,
}

impl From<&Capabilities> for Limits {
    fn from(c: &Capabilities) -> Self {
        let (major, minor) = c.compute_capability;
        Limits {
            compute_capability: format!("{major}.{minor}"),
            sms: c.sms,
            shared_memory_per_block_bytes: c.smem_per_block,
            shared_memory_per_sm_bytes: c.smem_per_sm,
            registers_per_sm: c.registers_per_sm,
            l2_bytes: c.l2_bytes,
            memory_bytes: c.memory_bytes,
        }
    }
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let gpu = Device::gpu(args.device.ordinal(), console);
    let device = Device::open(&args.device, console)?;
    let capabilities = device.runner().map(Runner::capabilities);
    let base = Problem::new(args.dtype, args.batch, args.seqlen, args.heads, 8);
    // If the user named a simulated card, the command needs no GPU.
    let meant = args.device.kind()? != DeviceKind::Sim;
    let would_run = capabilities.map_or(Ok(vec![]), |capabilities| choices(base, capabilities))?;
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        embedded_kernels: KERNELS.iter().filter(|kernel| ptx::is_embedded(kernel.symbol)).count(),
        kernels: KERNELS.len(),
        gpu: gpu.as_ref().ok().map(Device::to_string),
        no_gpu: gpu.as_ref().err().filter(|_| meant).map(Error::to_string),
        device: device.to_string(),
        limits: capabilities.map(Limits::from),
        problems: format!(
            "{} batch {}, {} heads, seqlen {}",
            args.dtype.name(),
            args.batch,
            args.heads,
            args.seqlen
        ),
        would_run,
    };
    console.report(&report, Ok(()))
}

/// Returns the kernel for each head dim and kind of mask. If no kernel supports a size, returns an error. If
/// a kernel does not fit the device, its row contains the reason.
fn choices(base: Problem, capabilities: &Capabilities) -> Result<Vec<Choice>, Error> {
    let window = Mask::Window { left: Some(255), right: Some(0) };
    let masks = [("full", Mask::Full), ("causal", Mask::Causal), ("window 255,0", window)];
    let mut choices = vec![];
    for head_dim in head_dims(plain(Isa::Sm80, Class::Dense)) {
        let head_dim = head_dim as usize;
        for (name, mask) in masks {
            let problem = base.head_dim(head_dim).mask(mask);
            let gradients = (!GRADIENTS.is_empty()).then(|| gradients(&problem, capabilities));
            let choice =
                Choice { head_dim, mask: name, kernel: None, reason: None, refused: None, gradients };
            choices.push(match explain(&problem, capabilities, Scratch::None) {
                Ok((kernel, reason)) => {
                    Choice { kernel: Some(kernel.symbol), reason: Some(reason), ..choice }
                }
                Err(error @ ferroflash::Error::Invalid { .. }) => return Err(error.into()),
                Err(error) => Choice { refused: Some(error.to_string()), ..choice },
            });
        }
    }
    Ok(choices)
}

/// Returns the launch of the gradients of a problem on contiguous tensors, with a workspace.
fn gradients(p: &Problem, capabilities: &Capabilities) -> Gradients {
    // The planner reads no memory. Tensors may lie anywhere, if they do not overlap.
    let [q, k, v, o, d_o, dq, dk, dv] = {
        let [q, k, v, o] = p.shapes();
        let mut address = 0;
        [q, k, v, o, o, q, k, v].map(|shape| {
            address += 1 << 40;
            TensorView::bshd(address, shape.iter().product::<usize>() as u64, p.dtype, shape)
        })
    };
    let lse = LseView::contiguous(
        1 << 50,
        (p.batch * p.heads_q * p.seqlen_q) as u64,
        [p.batch, p.heads_q, p.seqlen_q],
    );
    let forward = AttentionRequest::dense(q, k, v, o).mask(p.mask).lse(lse);
    let backward = AttentionBackward::new(forward, d_o, dq, dk, dv).scratch(Scratch::Fastest);
    match plan(&backward, capabilities) {
        Ok(plan) => Gradients {
            kernels: plan.kernels().map(|kernel| kernel.symbol).collect(),
            reason: plan.reason().to_owned(),
        },
        Err(error) => Gradients { kernels: vec![], reason: error.to_string() },
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "none".to_owned();
        writeln!(
            f,
            "ferroflash {}, {} of {} kernels in this build",
            self.version, self.embedded_kernels, self.kernels
        )?;
        match (&self.gpu, &self.no_gpu) {
            (Some(gpu), _) => writeln!(f, "GPU        {gpu}")?,
            (None, Some(reason)) => writeln!(f, "GPU        none ({reason})")?,
            (None, None) => {}
        }
        writeln!(f, "runs on    {}", self.device)?;
        let Some(limits) = &self.limits else { return Ok(()) };
        let kib = |bytes: u32| f64::from(bytes) / 1024.0;
        let mib = |bytes: u64| bytes >> 20;
        writeln!(f, "limits     compute capability {}, {} SMs", limits.compute_capability, limits.sms)?;
        writeln!(
            f,
            "           shared memory {} KiB per block, {} KiB per SM; {} registers per SM; L2 {} MiB; \
             memory {} MiB",
            kib(limits.shared_memory_per_block_bytes),
            kib(limits.shared_memory_per_sm_bytes),
            limits.registers_per_sm,
            mib(limits.l2_bytes),
            mib(limits.memory_bytes)
        )?;
        writeln!(f, "would run, for {}:", self.problems)?;
        let width = self.would_run.iter().filter_map(|choice| choice.kernel).map(str::len).max().unwrap_or(0);
        for choice in &self.would_run {
            let kernel =
                choice.kernel.map(str::to_owned).or_else(|| choice.refused.clone()).unwrap_or_else(none);
            let reason = choice.reason.map_or(String::new(), |reason| format!("  {reason}"));
            writeln!(f, "  head_dim {:>3}  {:<12}  {kernel:width$}{reason}", choice.head_dim, choice.mask)?;
        }
        let gradients =
            || self.would_run.iter().filter_map(|choice| Some((choice, choice.gradients.as_ref()?)));
        if gradients().next().is_some() {
            writeln!(f, "and for their gradients:")?;
        }
        for (Choice { head_dim, mask, .. }, Gradients { kernels, reason }) in gradients() {
            writeln!(f, "  head_dim {head_dim:>3}  {mask:<12}  {}  {reason}", kernels.join(", "))?;
        }
        Ok(())
    }
}
