//! Trains a small Llama on a text, whole or with LoRA: attention and its gradients are FerroFlash's.
mod adamw;
mod curve;
mod model;
mod parameters;
mod run;
mod sizes;
#[cfg(test)]
mod tests;
mod text;

use anyhow::{Context, Result, bail};
use candle::{DType, Device};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use model::{Attention, Model};
use parameters::Parameters;
use run::Run;
use sizes::Sizes;
use std::path::PathBuf;
use std::time::Instant;
use text::Text;

/// Trains a small Llama on bytes of a text. Writes checkpoint.safetensors and loss.svg
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Folder of the checkpoint and of the loss curve
    folder: PathBuf,
    /// Train up to this number of steps
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// Continue the folder's checkpoint
    #[arg(long)]
    resume: bool,
    /// Begin with the weights of this checkpoint
    #[arg(long, conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// Freeze the weights, and train LoRA's matrices of this rank
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..))]
    lora: Option<u32>,
    /// Text file; without it, six sonnets
    #[arg(long)]
    text: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
    /// Windows of the text in a step
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Tokens of a window
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Learning rate
    #[arg(long, default_value_t = 3e-3)]
    rate: f64,
    /// Write a checkpoint after each of this number of steps
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    save_every: u32,
    /// Compute on the GPU, in bf16
    #[arg(long)]
    cuda: bool,
    /// Compute attention with candle's products and softmax, for comparison
    #[arg(long)]
    plain: bool,
}

/// The first steps load kernels and libraries; the printed times are those of later steps.
const WARM_UP: usize = 3;

fn main() -> Result<()> {
    let options = Options::parse();
    options.sizes.check()?;
    let (device, dtype) = match options.cuda {
        true => (Device::new_cuda(0).context("no GPU")?, DType::BF16),
        false => (Device::Cpu, DType::F32),
    };
    let bytes = match &options.text {
        Some(path) => std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?,
        None => include_bytes!("../sonnets.txt").to_vec(),
    };
    let text = Text::new(bytes, options.batch, options.context)?;
    let attention = if options.plain { Attention::Plain } else { Attention::Flash };
    let model = Model { sizes: options.sizes, attention, dtype };
    let mut parameters = Parameters::random(&options.sizes, options.lora.map(|rank| rank as usize), &device)?;
    if let Some(path) = &options.from {
        parameters.load(&run::read(path, &device)?)?;
    }
    let folder = &options.folder;
    let checkpoint = folder.join("checkpoint.safetensors");
    let mut run = Run::new(model, parameters, options.rate, &device);
    if options.resume {
        run.resume(&checkpoint)?;
    } else if checkpoint.exists() {
        bail!("{} exists: continue it with --resume, or name another folder", checkpoint.display());
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    train(&mut run, &text, &options)?;
    run.save(&checkpoint)?;
    let picture = folder.join("loss.svg");
    std::fs::write(&picture, curve::svg(&run.losses))
        .with_context(|| format!("cannot write {}", picture.display()))?;
    println!("{} and {}", checkpoint.display(), picture.display());
    Ok(())
}

/// Trains the remaining steps, with progress, and prints the speed.
fn train(run: &mut Run, text: &Text, options: &Options) -> Result<()> {
    let bar = ProgressBar::new(options.steps as u64).with_position(run.losses.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {elapsed}, {msg}")?);
    let mut seconds = Vec::new();
    while run.losses.len() < options.steps {
        let start = Instant::now();
        let loss = run.step(text)?;
        seconds.push(start.elapsed().as_secs_f64());
        bar.set_message(format!("loss {loss:.3}"));
        bar.inc(1);
        if run.losses.len().is_multiple_of(options.save_every as usize) {
            run.save(&options.folder.join("checkpoint.safetensors"))?;
        }
    }
    bar.finish();
    let mut warm = seconds.split_off(WARM_UP.min(seconds.len()));
    warm.sort_by(f64::total_cmp);
    let loss = run.losses.last().copied().unwrap_or(f32::NAN);
    match warm.get(warm.len() / 2) {
        Some(median) => {
            let speed = text.tokens() as f64 / median;
            println!("loss {loss:.3}, {:.1} ms a step (median), {speed:.0} tokens/s", median * 1e3);
        }
        None => println!("loss {loss:.3}"),
    }
    Ok(())
}
