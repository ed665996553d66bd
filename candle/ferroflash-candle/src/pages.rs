//! Who has which pages of a cache: on the host, as only it hands them out.
use crate::errors::invalid;
use candle::Result;

/// Keys of a sequence, at most: lengths have 32 bits, of which kernels read a sign.
pub(crate) const MOST: usize = i32::MAX as usize;

/// The pages of a cache that nobody has. One pool serves the caches of all layers: the same pages of each.
#[derive(Clone, Debug)]
pub struct PagePool {
    page: usize,
    free: Vec<u32>,
}

/// A sequence: its pages, in order, and how many keys are in them.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<u32>,
    keys: usize,
}

impl PagePool {
    /// So many pages of so many keys each.
    pub fn new(pages: usize, page: usize) -> Self {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        PagePool { page: page.max(1), free: (0..pages).rev().collect() }
    }

    /// Keys of a page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Pages that nobody has.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives a sequence the pages for so many tokens behind its keys, or none.
    ///
    /// # Errors
    /// Where the pool has fewer pages, or the sequence 2^31 keys.
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

    /// Takes a sequence's pages back.
    pub fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages.into_iter().rev());
    }
}

impl Sequence {
    /// One without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keys that are in the cache: those of all steps so far.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Its pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Says that so many keys more are in the cache: when the step that has put them there was enqueued.
    pub fn advance(&mut self, tokens: usize) {
        self.keys = self.keys.saturating_add(tokens);
    }

    /// Its keys behind so many tokens more: [`MOST`] at most.
    pub(crate) fn with(&self, tokens: usize) -> Result<usize> {
        let keys = self.keys.saturating_add(tokens);
        if keys > MOST {
            let expected = format!("behind {} keys, at most {MOST} in all", self.keys);
            return Err(invalid("tokens", tokens, expected));
        }
        Ok(keys)
    }
}
