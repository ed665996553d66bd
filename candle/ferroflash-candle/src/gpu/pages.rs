//! Page allocation, on the host.
use crate::errors::invalid;
use candle::Result;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of keys per sequence: kernels read lengths as signed 32-bit integers.
pub(crate) const MOST: usize = i32::MAX as usize;

/// The free pages of a KV cache. One pool serves the KV caches of all layers, because a sequence has the same
/// page indices in each layer.
#[derive(Debug)]
pub struct PagePool {
    /// Its sequences have this number.
    number: u64,
    page: usize,
    free: Vec<u32>,
    /// The number of sequences that have each page.
    holders: Vec<u32>,
}

/// A sequence: its pages in order, and its number of keys.
#[derive(Debug, Default)]
pub struct Sequence {
    /// The number of the pool of its pages, if it has pages.
    pool: Option<u64>,
    pages: Vec<u32>,
    keys: usize,
}

impl PagePool {
    /// Returns a pool of `pages` pages with `page` keys each.
    pub fn new(pages: usize, page: usize) -> Self {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        static POOLS: AtomicU64 = AtomicU64::new(0);
        let number = POOLS.fetch_add(1, Ordering::Relaxed);
        let holders = vec![0; pages as usize];
        PagePool { number, page: page.max(1), free: (0..pages).rev().collect(), holders }
    }

    /// Returns the number of keys per page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Returns the number of free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives a sequence pages for `tokens` more tokens. After an error, the sequence has the same pages as
    /// before the call.
    ///
    /// # Errors
    /// Returns an error if the pool has too few pages, if the sequence has pages of another pool, or if it
    /// would reach 2^31 keys.
    pub fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<()> {
        if !self.has(sequence) {
            let expected = "it must be new, or have pages of this pool: grow it with its own pool";
            let value = format_args!("{} pages of another pool", sequence.pages.len());
            return Err(invalid("sequence", value, expected));
        }
        let keys = sequence.with(tokens)?;
        let pages = keys.div_ceil(self.page).saturating_sub(sequence.pages.len());
        let Some(left) = self.free.len().checked_sub(pages) else {
            let expected = format!("a sequence of {keys} keys needs {pages} more");
            return Err(invalid("free pages", self.free.len(), expected));
        };
        for page in self.free.drain(left..).rev() {
            sequence.pages.push(page);
            self.holders[page as usize] = 1;
        }
        sequence.pool = (!sequence.pages.is_empty()).then_some(self.number);
        Ok(())
    }

    /// Returns a sequence that begins with the first `keys` keys of another sequence, such as the keys of a
    /// system prompt. Both sequences have the pages that hold these keys alone. [`Sequence::keys`] says how
    /// many keys the new sequence has; the model computes its other tokens. With
    /// [`Step::sharing`](crate::Step::sharing), launches read shared pages once. With a sequence of another
    /// pool, the new sequence has no keys.
    pub fn share(&mut self, of: &Sequence, keys: usize) -> Sequence {
        let whole = if self.has(of) { (keys.min(of.keys) / self.page).min(of.pages.len()) } else { 0 };
        let pages = of.pages[..whole].to_vec();
        for page in &pages {
            self.holders[*page as usize] += 1;
        }
        Sequence { pool: of.pool.filter(|_| whole > 0), pages, keys: whole * self.page }
    }

    /// Frees the pages of a sequence that no other sequence shares. A sequence of another pool has no pages
    /// of this pool.
    pub fn release(&mut self, sequence: Sequence) {
        if !self.has(&sequence) {
            return;
        }
        for page in sequence.pages.into_iter().rev() {
            let holders = &mut self.holders[page as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(page);
            }
        }
    }

    /// Returns whether a sequence's pages are this pool's, or the sequence has no pages.
    fn has(&self, sequence: &Sequence) -> bool {
        sequence.pool.is_none_or(|number| number == self.number)
    }
}

impl Sequence {
    /// Returns a sequence without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of keys in the KV cache, from all steps so far.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Returns the sequence's pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Adds `tokens` keys. Call this function after you have enqueued the step that writes them.
    pub fn advance(&mut self, tokens: usize) {
        self.keys = self.keys.saturating_add(tokens);
    }

    /// Returns the number of keys after `tokens` more tokens, at most [`MOST`].
    pub(crate) fn with(&self, tokens: usize) -> Result<usize> {
        let keys = self.keys.saturating_add(tokens);
        if keys > MOST {
            let expected = format!("behind {} keys, at most {MOST} in all", self.keys);
            return Err(invalid("tokens", tokens, expected));
        }
        Ok(keys)
    }
}
