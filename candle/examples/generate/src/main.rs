//! Generates text from a checkpoint of Llama's family: FerroFlash's kernels, a paged KV cache, chunked
//! prefill, continuous batching.
#![forbid(unsafe_code)]
mod bench;
mod check;
mod config;
mod engine;
mod model;
#[cfg(feature = "cuda")]
mod paged;
mod plain;
mod report;
mod step;
#[cfg(test)]
mod tests;
mod text;
mod tiny;
mod weights;

use anyhow::{Context, Result, ensure};
use candle::{DType, Device, Tensor};
use clap::{Args, Parser, Subcommand};
use config::Config;
use engine::{Engine, Settings};
use model::{Attention, Model};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use weights::Weights;

/// Generate text from a checkpoint of Llama's family on FerroFlash's kernels
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue prompts, in one batch
    Run(Run),
    /// Measure prefill and decode steps by context length
    Bench(Bench),
    /// Write a small random checkpoint
    MakeTiny {
        /// Folder of the checkpoint
        folder: PathBuf,
        /// Seed of the weights
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Columns of a head
        #[arg(long, default_value_t = 64)]
        head_dim: usize,
    },
}

#[derive(Args)]
struct Common {
    /// Use attention as candle's models write it, in f32
    #[arg(long)]
    plain: bool,
    /// Compute on the CPU, in f32; needs --plain
    #[arg(long, requires = "plain")]
    cpu: bool,
    /// Index of the GPU
    #[arg(long, default_value_t = 0)]
    gpu: usize,
    /// Maximum number of prompt tokens per step
    #[arg(long, default_value_t = 2048, value_parser = 1..)]
    chunk: i64,
    /// Rows per page of the KV cache
    #[arg(long, default_value_t = 64, value_parser = 1..)]
    page: i64,
}

#[derive(Args)]
struct Run {
    /// The checkpoint: config.json, tokenizer.json, *.safetensors
    folder: PathBuf,
    /// A prompt; several run in one batch
    #[arg(short, long = "prompt", value_name = "TEXT")]
    prompts: Vec<String>,
    /// A file with one prompt per line
    #[arg(long)]
    file: Option<PathBuf>,
    /// Maximum number of new tokens per request
    #[arg(short, long, default_value_t = 128, value_parser = 1.., allow_negative_numbers = true)]
    tokens: i64,
    /// Sequences per step; other requests wait
    #[arg(long, default_value_t = 32, value_parser = 1..)]
    seats: i64,
    /// Pages of the KV cache; by default the number that the requests need
    #[arg(long)]
    pages: Option<usize>,
    /// Temperature of sampling; 0 is greedy
    #[arg(long, default_value_t = 0.0, value_parser = temperature, allow_negative_numbers = true)]
    temperature: f64,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Compare every token with the best token of the f32 model on candle's plain path
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Bench {
    /// The checkpoint; by default a random model of 1.5e9 parameters
    folder: Option<PathBuf>,
    /// Tokens per prompt
    #[arg(long, value_delimiter = ',', default_value = "512,2048,8192,16384")]
    contexts: Vec<usize>,
    /// Sequences per step
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    batches: Vec<usize>,
    /// Decode steps to measure
    #[arg(long, default_value_t = 32)]
    steps: usize,
    /// Requests of different lengths to measure afterwards; 0 measures none
    #[arg(long, default_value_t = 64)]
    requests: usize,
    /// Write the measurements as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the measurements as an SVG
    #[arg(long)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let done = Cli::parse().run();
    if let Err(error) = &done {
        eprintln!("error: {error:#}");
    }
    ExitCode::from(u8::from(done.is_err()))
}

impl Cli {
    fn run(&self) -> Result<()> {
        match &self.command {
            Command::Run(run) => run.run(),
            Command::Bench(bench) => bench.run(),
            Command::MakeTiny { folder, seed, head_dim } => tiny::make(folder, *seed, *head_dim),
        }
    }
}

/// Parses a temperature: 0 or above, and finite.
fn temperature(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|e| format!("{e}"))?;
    match number.is_finite() && number >= 0.0 {
        true => Ok(number),
        false => Err("it must be 0 or above, and finite".into()),
    }
}

impl Common {
    fn device(&self) -> Result<Device> {
        if self.cpu {
            return Ok(Device::Cpu);
        }
        ensure!(cfg!(feature = "cuda"), "this program was built without `cuda`; --plain --cpu runs here");
        Device::new_cuda(self.gpu).with_context(|| {
            format!("GPU {} cannot be used; --plain --cpu runs on the CPU, slowly", self.gpu)
        })
    }

    /// Returns the dtype of the model. On the CPU it is f32. On a GPU it is the checkpoint's dtype, if that
    /// has 16 bits.
    fn dtype(&self) -> Option<DType> {
        self.cpu.then_some(DType::F32)
    }

    fn attention<'m>(&self, model: &'m Model, settings: &Settings) -> Result<Box<dyn Attention + 'm>> {
        if self.plain {
            return Ok(Box::new(plain::Plain::new(model.config.window())));
        }
        #[cfg(feature = "cuda")]
        return Ok(Box::new(paged::Paged::new(model, settings)?));
        #[cfg(not(feature = "cuda"))]
        anyhow::bail!(
            "this program was built without `cuda`, and a cache of {} pages needs a GPU",
            settings.pages
        );
    }

    fn settings(&self, config: &Config, seats: usize, positions: usize) -> Settings {
        let (chunk, page) = (self.chunk as usize, self.page as usize);
        Settings { seats, chunk, page, pages: 0, positions, temperature: 0.0, ends: config.ends() }
    }
}

impl Run {
    fn run(&self) -> Result<()> {
        ensure!(self.prompts.iter().all(|prompt| !prompt.is_empty()), "an empty prompt: --prompt takes text");
        let config = Config::read(&self.folder)?;
        let tokenizer = text::tokenizer(&self.folder)?;
        let mut prompts = self.prompts.clone();
        if let Some(file) = &self.file {
            let lines =
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            prompts.extend(lines.lines().filter(|line| !line.is_empty()).map(String::from));
        }
        ensure!(!prompts.is_empty(), "no prompt: give --prompt TEXT, or --file with one prompt per line");
        let prompts =
            prompts.iter().map(|prompt| text::encode(&tokenizer, prompt)).collect::<Result<Vec<_>>>()?;
        let mut longest = 0;
        for (request, prompt) in prompts.iter().enumerate() {
            engine::fits(prompt.len(), self.tokens(), config.max_position_embeddings)
                .with_context(|| format!("prompt {} in this model's context", request + 1))?;
            longest = longest.max(prompt.len() + self.tokens());
        }
        let device = self.common.device()?;
        if self.temperature != 0.0 && !self.common.cpu {
            device.set_seed(self.seed)?;
        }
        let weights = Weights::read(&self.folder, self.common.dtype(), &device)?;
        let model = Model::new(&config, &weights, longest)?;
        let mut settings = self.common.settings(&config, self.seats as usize, longest);
        settings.temperature = self.temperature;
        settings.pages = self.pages.unwrap_or_else(|| {
            let mut each: Vec<usize> =
                prompts.iter().map(|prompt| (prompt.len() + self.tokens()).div_ceil(settings.page)).collect();
            each.sort_unstable();
            each.iter().rev().take(settings.seats).sum()
        });
        let attention = self.common.attention(&model, &settings)?;
        if self.check {
            let exact = Model::new(&config, &weights.to_dtype(DType::F32)?, longest)?;
            return self.check([&model, &exact], attention, &settings, &prompts);
        }
        self.print(&tokenizer, Engine::new(&model, attention, settings), &prompts)
    }

    fn tokens(&self) -> usize {
        self.tokens as usize
    }

    fn print(
        &self,
        tokenizer: &tokenizers::Tokenizer,
        mut engine: Engine,
        prompts: &[Vec<u32>],
    ) -> Result<()> {
        for prompt in prompts {
            engine.submit(prompt.clone(), self.tokens())?;
        }
        let mut printer = text::Printer::new(tokenizer, std::io::stdout(), prompts);
        let (start, mut first, mut steps, mut tokens) = (Instant::now(), None, 0, 0);
        while !engine.is_idle() {
            for event in engine.step()? {
                first.get_or_insert_with(|| start.elapsed());
                tokens += 1;
                printer.token(event.request, event.token, event.last)?;
            }
            steps += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        eprintln!(
            "{}, {} of prompts; {tokens} new tokens in {} and {seconds:.2} s: {:.1} per second; the first \
             after {:.1} ms",
            text::count(prompts.len(), "request"),
            text::count(prompts.iter().map(Vec::len).sum(), "token"),
            text::count(steps, "step"),
            tokens as f64 / seconds,
            first.unwrap_or_default().as_secs_f64() * 1e3
        );
        Ok(())
    }

    fn check<'m>(
        &self,
        models: [&'m Model; 2],
        attention: Box<dyn Attention + 'm>,
        settings: &Settings,
        prompts: &[Vec<u32>],
    ) -> Result<()> {
        let verdicts = check::check(models, attention, settings, prompts, self.tokens())?;
        let mut worst = 0f32;
        for (request, verdict) in verdicts.iter().enumerate() {
            let check::Verdict { tokens, ties, first, worst: here } = verdict;
            let first = first.map_or("none".into(), |first| format!("the first at token {first}"));
            println!(
                "request {request}: {tokens} tokens, {ties} ties with a better token in f32 ({first}); the \
                 worst takes {here:.2} of the permitted difference"
            );
            worst = worst.max(*here);
        }
        ensure!(worst <= 1.0, "wrong tokens: the f32 model would choose other tokens");
        println!("greedy output equals the f32 model's on candle's plain path, except for ties");
        Ok(())
    }
}

impl Bench {
    fn run(&self) -> Result<()> {
        let device = self.common.device()?;
        let (config, weights) = match &self.folder {
            Some(folder) => (Config::read(folder)?, Weights::read(folder, self.common.dtype(), &device)?),
            None => {
                ensure!(
                    !self.common.cpu,
                    "a random model of 1.5e9 parameters needs a GPU: name a checkpoint"
                );
                device.set_seed(1)?;
                let random = |shape: [usize; 2], deviation| {
                    Ok(Tensor::randn(0f32, deviation, (shape[0], shape[1]), &device)?.to_dtype(DType::F16)?)
                };
                let config = Config::billion();
                let weights = Weights::random(&config, random)?;
                (config, weights)
            }
        };
        let longest = self.contexts.iter().max().context("no context")? + 4096;
        let model = Model::new(&config, &weights, longest)?;
        let settings = self.common.settings(&config, 32, longest);
        let fresh = |settings: &Settings| self.common.attention(&model, settings);
        let mut contexts = Vec::new();
        for &context in &self.contexts {
            for &batch in &self.batches {
                contexts.push(bench::point(&model, &fresh, &settings, [context, batch, self.steps])?);
                eprint!(".");
            }
        }
        eprintln!();
        let ragged = match self.requests {
            0 => None,
            requests => Some(bench::ragged(&model, &fresh, &settings, [requests, 2048])?),
        };
        let words: Vec<String> = std::env::args().skip(1).collect();
        let report = bench::Report {
            command: format!("generate {}", words.join(" ")),
            attention: if self.common.plain { "plain" } else { "FerroFlash" },
            parameters: weights.parameters(),
            dtype: format!("{:?}", model.dtype()),
            contexts,
            ragged,
        };
        print!("{}", report::table(&report));
        let write = |path: &Option<PathBuf>, text: String| match path {
            Some(path) => {
                std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
            }
            None => Ok(()),
        };
        write(&self.json, serde_json::to_string_pretty(&report)? + "\n")?;
        write(&self.svg, report::svg(&report))
    }
}
