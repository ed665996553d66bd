//! Page allocation, on the host.
use crate::errors::invalid;
use candle::Result;

/// Maximum of keys per sequence: kernels read lengths as signed 32-bit integers.
pub(crate) const MOST: usize = i32::MAX as usize;

/// The free pages of a KV cache. One pool serves the KV caches of all layers: a sequence has equal page
/// indices in each.
#[derive(Clone, Debug)]
pub struct PagePool {
    page: usize,
    free: Vec<u32>,
}

/// A sequence: its pages in order, and its number of keys.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<u32>,
    keys: usize,
}

impl PagePool {
    /// A pool of `pages` pages with `page` keys each.
    pub fn new(pages: usize, page: usize) -> Self {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        PagePool { page: page.max(1), free: (0..pages).rev().collect() }
    }

    /// Keys per page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Number of free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives a sequence pages for `tokens` more tokens. After an error, the sequence has the same pages as
    /// before.
    ///
    /// # Errors
    /// If the pool has too few pages, or the sequence would reach 2^31 keys.
    pub fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<()> {
        let keys = sequence.with(tokens)?;
        let pages = keys.div_ceil(self.page).saturating_sub(sequence.pages.len());
        let Some(left) = self.free.len().checked_sub(pages) else {
            let expected = format!("a sequence of {keys} keys needs {pages} more");
            return Err(invalid("free pages", self.free.len(), expected));
        };
        sequence.pages.extend(self.free.drain(left..).rev());
        Ok(())
    }

    /// Frees a sequence's pages.
    pub fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages.into_iter().rev());
    }
}

impl Sequence {
    /// A sequence without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys in the KV cache, from all steps so far.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The sequence's pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Adds `tokens` keys. Call this function after you have enqueued the step that writes them.
    pub fn advance(&mut self, tokens: usize) {
        self.keys = self.keys.saturating_add(tokens);
    }

    /// The number of keys after `tokens` more tokens, at most [`MOST`].
    pub(crate) fn with(&self, tokens: usize) -> Result<usize> {
        let keys = self.keys.saturating_add(tokens);
        if keys > MOST {
            let expected = format!("behind {} keys, at most {MOST} in all", self.keys);
            return Err(invalid("tokens", tokens, expected));
        }
        Ok(keys)
    }
}
