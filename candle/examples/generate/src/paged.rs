//! Attention by FerroFlash's kernels on a paged KV cache.
use crate::engine::Settings;
use crate::model::{Attention, Model};
use crate::step::Part;
use anyhow::{Context, Result};
use candle::Tensor;
use ferroflash_candle::{Attend, KvCache, PagePool, Sequence, Step};
use std::collections::HashMap;

/// One KV cache per layer, and the pages of each sequence.
pub struct Paged {
    caches: Vec<KvCache>,
    pool: PagePool,
    sequences: HashMap<usize, Sequence>,
    /// Maximum number of tokens per sequence.
    most: usize,
    step: Step,
    parts: Vec<Part>,
    attend: Attend,
}

impl Paged {
    /// Creates empty KV caches.
    ///
    /// # Errors
    /// Returns an error if the KV caches do not fit on the device.
    pub fn new(model: &Model, settings: &Settings) -> Result<Self> {
        let &Settings { seats, chunk, page, pages, positions, .. } = settings;
        let (config, device) = (&model.config, model.device());
        let shape = (pages, page, config.key_heads(), config.head_dim());
        let caches = (0..config.num_hidden_layers)
            .map(|_| KvCache::new(shape, model.dtype(), device))
            .collect::<candle::Result<_>>()
            .with_context(|| {
                format!("the device has no room for a KV cache of {pages} pages of {page} tokens")
            })?;
        let scale = (config.head_dim() as f32).sqrt().recip();
        Ok(Paged {
            caches,
            pool: PagePool::new(pages, page),
            sequences: HashMap::new(),
            most: pages * page,
            step: Step::new(seats, chunk + seats, positions.div_ceil(page), page, device)?,
            parts: Vec::new(),
            attend: Attend::causal(scale).window(config.window(), Some(0)),
        })
    }
}

impl Attention for Paged {
    fn most(&self) -> usize {
        self.most
    }

    fn admit(&mut self, sequence: usize, tokens: usize) -> Result<bool> {
        if self.pool.free() < tokens.div_ceil(self.pool.page()) {
            return Ok(false);
        }
        let mut pages = Sequence::new();
        self.pool.grow(&mut pages, tokens)?;
        self.sequences.insert(sequence, pages);
        Ok(true)
    }

    fn begin(&mut self, parts: &[Part]) -> Result<()> {
        // Counts the keys and values that the previous step wrote.
        for part in std::mem::replace(&mut self.parts, parts.to_vec()) {
            if let Some(sequence) = self.sequences.get_mut(&part.sequence) {
                sequence.advance(part.rows);
            }
        }
        let sequences = parts.iter().map(|part| Some((self.sequences.get(&part.sequence)?, part.rows)));
        let sequences = sequences.collect::<Option<Vec<_>>>().context("a sequence that was not admitted")?;
        Ok(self.step.set(&sequences)?)
    }

    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let cache = &mut self.caches[layer];
        cache.append(k, v, &self.step)?;
        Ok(cache.attend(q, &self.step, &self.attend)?)
    }

    fn forget(&mut self, sequence: usize) {
        if let Some(sequence) = self.sequences.remove(&sequence) {
            self.pool.release(sequence);
        }
    }
}
