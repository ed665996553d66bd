//! Measures prefill and decode steps by context length, and continuous batching.
use crate::engine::{Engine, Settings};
use crate::model::{Attention, Model};
use crate::weights::Dice;
use anyhow::Result;
use serde::Serialize;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The measurements.
#[derive(Serialize)]
pub struct Report {
    /// The command's arguments.
    pub command: String,
    /// The library that computed attention.
    pub attention: &'static str,
    /// Parameters of the model.
    pub parameters: usize,
    /// The dtype of the computation.
    pub dtype: String,
    /// Decode steps, by rising context.
    pub contexts: Vec<Point>,
    /// Continuous batching.
    pub ragged: Option<Ragged>,
}

/// Times of equally long sequences.
#[derive(Serialize)]
pub struct Point {
    /// Tokens of each prompt.
    pub context: usize,
    /// Sequences per step.
    pub batch: usize,
    /// The time from the first step to the first token of the last sequence, in milliseconds.
    pub prefill_ms: f64,
    /// The median time of a decode step, in milliseconds.
    pub step_ms: f64,
}

/// Continuous batching of requests with different lengths. There are more requests than seats.
#[derive(Serialize)]
pub struct Ragged {
    /// Number of requests.
    pub requests: usize,
    /// Sequences per step.
    pub seats: usize,
    /// Tokens of all prompts.
    pub prompts: usize,
    /// New tokens.
    pub tokens: usize,
    /// The time from the first step to the last, in seconds.
    pub seconds: f64,
}

impl Point {
    /// Returns the number of prompt tokens per second.
    pub fn prefill_rate(&self) -> f64 {
        (self.context * self.batch) as f64 / self.prefill_ms * 1e3
    }

    /// Returns the number of new tokens per second.
    pub fn rate(&self) -> f64 {
        self.batch as f64 / self.step_ms * 1e3
    }
}

fn prompt(length: usize, vocabulary: usize, dice: &mut Dice) -> Vec<u32> {
    (0..length).map(|_| dice.below(vocabulary) as u32).collect()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Creates attention with empty caches.
pub type Fresh<'f, 'm> = &'f dyn Fn(&Settings) -> Result<Box<dyn Attention + 'm>>;

/// Measures the prefill of `batch` sequences of `context` tokens, then `steps` decode steps. Each step ends
/// when its tokens are on the CPU.
///
/// # Errors
/// Returns an error if the device or attention fails.
pub fn point<'m>(
    model: &'m Model,
    fresh: Fresh<'_, 'm>,
    settings: &Settings,
    [context, batch, steps]: [usize; 3],
) -> Result<Point> {
    // Every sequence gets an equal number of tokens. The first sequence continues while the last sequence's
    // prompt is computed.
    let limit = steps + batch * context.div_ceil(settings.chunk) + 1;
    let pages = batch * (context + limit).div_ceil(settings.page);
    let settings = Settings { seats: batch, ends: Vec::new(), pages, ..settings.clone() };
    let run = |steps: usize| -> Result<Point> {
        let mut dice = Dice::new(1);
        let mut engine = Engine::new(model, fresh(&settings)?, settings.clone());
        for _ in 0..batch {
            engine.submit(prompt(context, model.config.vocab_size, &mut dice), limit)?;
        }
        model.device().synchronize()?;
        let (start, mut begun) = (Instant::now(), HashSet::new());
        while begun.len() < batch {
            begun.extend(engine.step()?.iter().map(|event| event.request));
        }
        let prefill_ms = ms(start.elapsed());
        let mut times = Vec::new();
        for _ in 0..steps {
            let start = Instant::now();
            engine.step()?;
            times.push(ms(start.elapsed()));
        }
        times.sort_by(f64::total_cmp);
        Ok(Point { context, batch, prefill_ms, step_ms: times[times.len() / 2] })
    };
    // The first run loads kernels. The second run brings the GPU to its full clock.
    run(2)?;
    run(steps.max(1))
}

/// Measures requests of 64 to `longest` tokens, each with 16 to 128 new tokens, on the seats of `settings`.
///
/// # Errors
/// Returns an error if the device or attention fails.
pub fn ragged<'m>(
    model: &'m Model,
    fresh: Fresh<'_, 'm>,
    settings: &Settings,
    [requests, longest]: [usize; 2],
) -> Result<Ragged> {
    let mut dice = Dice::new(2);
    let pages = settings.seats * (longest + 128).div_ceil(settings.page);
    let settings = Settings { pages, ends: Vec::new(), ..settings.clone() };
    let mut engine = Engine::new(model, fresh(&settings)?, settings.clone());
    let (mut prompts, mut tokens) = (0, 0);
    for _ in 0..requests {
        let (length, limit) = (64 + dice.below(longest.max(65) - 64), 16 + dice.below(113));
        (prompts, tokens) = (prompts + length, tokens + limit);
        engine.submit(prompt(length, model.config.vocab_size, &mut dice), limit)?;
    }
    model.device().synchronize()?;
    let start = Instant::now();
    while !engine.is_idle() {
        engine.step()?;
    }
    Ok(Ragged { requests, seats: settings.seats, prompts, tokens, seconds: start.elapsed().as_secs_f64() })
}
