//! Continuous batching: requests start and end while others run.
use crate::model::{Attention, Model};
use crate::step::{Asked, Chunk, Step};
use anyhow::{Result, ensure};
use candle::{D, Tensor};
use std::collections::VecDeque;

/// How requests share a device.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sequences per step.
    pub seats: usize,
    /// Maximum number of prompt tokens per step.
    pub chunk: usize,
    /// Rows of a page.
    pub page: usize,
    /// Pages of the KV cache.
    pub pages: usize,
    /// Maximum number of positions per sequence.
    pub positions: usize,
    /// Temperature of sampling; 0 is greedy.
    pub temperature: f64,
    /// End-of-text tokens.
    pub ends: Vec<u32>,
}

/// A token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number of the request, which `submit` returned.
    pub request: usize,
    /// The next token.
    pub token: u32,
    /// Whether the token is the last one.
    pub last: bool,
}

/// Schedules and computes requests.
pub struct Engine<'m> {
    model: &'m Model,
    attention: Box<dyn Attention + 'm>,
    settings: Settings,
    waiting: VecDeque<Seat>,
    seats: Vec<Seat>,
    submitted: usize,
}

struct Seat {
    request: usize,
    /// The prompt and the generated tokens.
    tokens: Vec<u32>,
    /// Number of tokens in the KV cache.
    kept: usize,
    /// Maximum number of tokens that may follow.
    left: usize,
}

/// Checks that a prompt and the tokens that may follow fit into `most` tokens.
///
/// # Errors
/// Returns an error if they do not fit.
pub fn fits(prompt: usize, limit: usize, most: usize) -> Result<()> {
    let left = most.saturating_sub(prompt);
    ensure!(
        limit <= left,
        "{prompt} tokens and {limit} new tokens; there is room for {most} tokens, so for {left} new tokens"
    );
    Ok(())
}

impl<'m> Engine<'m> {
    /// Returns an engine without requests.
    pub fn new(model: &'m Model, attention: Box<dyn Attention + 'm>, settings: Settings) -> Self {
        let (waiting, seats) = (VecDeque::new(), Vec::new());
        Engine { model, attention, settings, waiting, seats, submitted: 0 }
    }

    /// Adds a request: a prompt, and the maximum number of new tokens. Returns the request's number.
    ///
    /// # Errors
    /// Returns an error if a prompt is empty, or longer than the KV cache or the model permits.
    pub fn submit(&mut self, prompt: Vec<u32>, limit: usize) -> Result<usize> {
        let vocabulary = self.model.config.vocab_size;
        ensure!(!prompt.is_empty(), "a prompt without a token");
        ensure!(limit > 0, "a request for 0 tokens: ask for at least 1");
        let unknown = prompt.iter().find(|token| **token as usize >= vocabulary);
        ensure!(unknown.is_none(), "token {unknown:?}: must be below the vocabulary size {vocabulary}");
        fits(prompt.len(), limit, self.attention.most().min(self.settings.positions))?;
        let request = self.submitted;
        self.submitted += 1;
        self.waiting.push_back(Seat { request, tokens: prompt, kept: 0, left: limit });
        Ok(request)
    }

    /// Returns whether every request is done.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.seats.is_empty()
    }

    /// Runs one step: computes the next token of every sequence whose prompt is complete, and chunks of the
    /// other prompts.
    ///
    /// # Errors
    /// Returns an error if the device or attention fails.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.admit()?;
        let mut budget = self.settings.chunk;
        let mut chunks = Vec::new();
        for seat in &self.seats {
            let ahead = seat.tokens.len() - seat.kept;
            let rows = if ahead == 1 { 1 } else { ahead.min(budget) };
            if rows == 0 {
                continue;
            }
            budget -= if ahead == 1 { 0 } else { rows };
            chunks.push(Chunk {
                sequence: seat.request,
                start: seat.kept,
                tokens: &seat.tokens[seat.kept..seat.kept + rows],
                asked: if rows == ahead { Asked::Last } else { Asked::None },
            });
        }
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        let step = Step::new(chunks, self.model.device())?;
        let logits = self.model.forward(&step, &mut *self.attention)?;
        let mut picked = logits.map(|logits| self.pick(&logits)).transpose()?.unwrap_or_default().into_iter();
        let mut events = Vec::new();
        for part in &step.parts {
            let seat = self.seats.iter_mut().find(|seat| seat.request == part.sequence);
            let seat = seat.expect("each part belongs to a seat");
            seat.kept += part.rows;
            if part.asked == Asked::Last {
                let token = picked.next().expect("each requested row has a token");
                seat.tokens.push(token);
                seat.left -= 1;
                let last = seat.left == 0 || self.settings.ends.contains(&token);
                events.push(Event { request: seat.request, token, last });
            }
        }
        for event in events.iter().filter(|event| event.last) {
            self.leave(event.request);
        }
        Ok(events)
    }

    fn admit(&mut self) -> Result<()> {
        while self.seats.len() < self.settings.seats
            && let Some(first) = self.waiting.front()
            // Reserves room for the maximum number of tokens, so that no sequence must stop early.
            && self.attention.admit(first.request, first.tokens.len() + first.left)?
        {
            self.seats.extend(self.waiting.pop_front());
        }
        Ok(())
    }

    fn leave(&mut self, request: usize) {
        self.attention.forget(request);
        self.seats.retain(|seat| seat.request != request);
    }

    fn pick(&self, logits: &Tensor) -> Result<Vec<u32>> {
        let picked = candle_nn::sampling::gumbel_softmax(logits, self.settings.temperature, D::Minus1)?;
        Ok(picked.to_vec1()?)
    }
}
