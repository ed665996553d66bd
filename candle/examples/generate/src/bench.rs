//! Times: prompts and steps of decoding by the length of the context, and requests that come and go.
use crate::engine::{Engine, Settings};
use crate::model::{Attention, Model};
use crate::weights::Dice;
use anyhow::Result;
use serde::Serialize;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// What was measured.
#[derive(Serialize)]
pub struct Report {
    /// How it was started, without the program's place.
    pub command: String,
    /// Whose attention.
    pub attention: &'static str,
    /// Parameters of the model.
    pub parameters: usize,
    /// The type that it computes in.
    pub dtype: String,
    /// Steps of decoding by context, the context rising.
    pub contexts: Vec<Point>,
    /// Requests that come and go.
    pub ragged: Option<Ragged>,
}

/// Sequences that are as long.
#[derive(Serialize)]
pub struct Point {
    /// Tokens of each prompt.
    pub context: usize,
    /// Sequences at a time.
    pub batch: usize,
    /// From the first step to the first token of the last sequence.
    pub prefill_ms: f64,
    /// A step of decoding: the median.
    pub step_ms: f64,
}

/// Requests of different lengths, more than there are seats.
#[derive(Serialize)]
pub struct Ragged {
    /// How many.
    pub requests: usize,
    /// Of them at a time.
    pub seats: usize,
    /// Tokens of all prompts.
    pub prompts: usize,
    /// New tokens.
    pub tokens: usize,
    /// From the first step to the last.
    pub seconds: f64,
}

impl Point {
    /// Tokens of prompts a second.
    pub fn prefill_rate(&self) -> f64 {
        (self.context * self.batch) as f64 / self.prefill_ms * 1e3
    }

    /// New tokens a second.
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

/// Makes attention that nobody has used.
pub type Fresh<'f, 'm> = &'f dyn Fn(&Settings) -> Result<Box<dyn Attention + 'm>>;

/// `batch` sequences of `context` tokens, then so many steps. Each step ends with its tokens on the CPU.
///
/// # Errors
/// What the device or attention refuses.
pub fn point<'m>(
    model: &'m Model,
    fresh: Fresh<'_, 'm>,
    settings: &Settings,
    [context, batch, steps]: [usize; 3],
) -> Result<Point> {
    // As many tokens for each: the first sequence goes on while the last one's prompt is computed.
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
    // Once for kernels to be loaded, once for the clock.
    run(2)?;
    run(steps.max(1))
}

/// Requests of 64 to `longest` tokens, each to be answered with 16 to 128, on the seats that `settings` has.
///
/// # Errors
/// What the device or attention refuses.
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
