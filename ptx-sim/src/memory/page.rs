//! One page of device memory: its bytes, and which of them were written.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed},
};

use super::{PAGE, POISON};
use crate::shadow::Shadow;

const WORDS: usize = PAGE / 4;

/// The content of a page. Blocks run in parallel, so every element is atomic.
#[derive(Debug)]
pub(super) struct Page {
    words: [AtomicU32; WORDS],
    /// For each byte of a word, a bit that says whether the byte was written, and four bits further up a bit
    /// that says whether a kernel wrote it since the last launch that was not dependent began.
    pub(super) written: [AtomicU8; WORDS],
    /// Whether a kernel wrote bytes of the page since then.
    pub(super) recent: AtomicBool,
    /// The accesses of this launch to the page.
    pub(super) shadow: Mutex<Option<Box<Shadow>>>,
}

impl Page {
    /// A page whose bytes were never written.
    pub fn new() -> Box<Page> {
        Box::new(Page {
            words: [const { AtomicU32::new(u32::from_ne_bytes([POISON; 4])) }; WORDS],
            written: [const { AtomicU8::new(0) }; WORDS],
            recent: AtomicBool::new(false),
            shadow: Mutex::new(None),
        })
    }

    #[inline]
    pub fn load(&self, at: usize, out: &mut [u8]) -> u64 {
        let mut missing = 0;
        if at.is_multiple_of(4) && out.len().is_multiple_of(4) {
            for (i, chunk) in out.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&self.words[at / 4 + i].load(Relaxed).to_le_bytes());
                missing |= u64::from(!self.written[at / 4 + i].load(Relaxed) & 15) << (4 * i % 64);
            }
        } else {
            for (i, byte) in out.iter_mut().enumerate() {
                let at = at + i;
                *byte = self.words[at / 4].load(Relaxed).to_le_bytes()[at % 4];
                missing |= u64::from(!self.written[at / 4].load(Relaxed) >> (at % 4) & 1) << (i % 64);
            }
        }
        missing
    }

    #[inline]
    pub fn store(&self, at: usize, bytes: &[u8]) -> u64 {
        let mut changed = 0;
        if at.is_multiple_of(4) && bytes.len().is_multiple_of(4) {
            for (i, chunk) in bytes.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
                let differs = self.words[at / 4 + i].swap(word, Relaxed) ^ word;
                if differs != 0 {
                    let bytes = (0..4).filter(|byte| differs >> (8 * byte) & 0xff != 0);
                    changed |= bytes.fold(0, |mask, byte| mask | 1 << byte) << (4 * i % 64);
                }
                self.mark(at / 4 + i, 15);
            }
        } else {
            for (i, &byte) in bytes.iter().enumerate() {
                let (word, shift) = ((at + i) / 4, (at + i) % 4 * 8);
                let merge = |old: u32| Some(old & !(0xff << shift) | u32::from(byte) << shift);
                let old = self.words[word].fetch_update(Relaxed, Relaxed, merge).unwrap_or_default();
                changed |= u64::from((old >> shift) as u8 != byte) << (i % 64);
                self.mark(word, 1 << ((at + i) % 4));
            }
        }
        changed
    }

    /// Stores bytes of a page that no kernel accesses meanwhile, without the atomic exchanges that
    /// [`Self::store`] needs.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(at.next_multiple_of(4) - at));
        let (words, last) = rest.as_chunks::<4>();
        let word = at.div_ceil(4);
        let places = self.words.iter().zip(&self.written).skip(word);
        for ((place, written), bytes) in places.zip(words) {
            place.store(u32::from_le_bytes(*bytes), Relaxed);
            written.store(15, Relaxed);
        }
        for (at, bytes) in [(at, first), (4 * (word + words.len()), last)] {
            for (at, &byte) in (at..).zip(bytes) {
                let (place, written) = (&self.words[at / 4], &self.written[at / 4]);
                let mut word = place.load(Relaxed).to_le_bytes();
                word[at % 4] = byte;
                place.store(u32::from_le_bytes(word), Relaxed);
                written.store((written.load(Relaxed) | 1 << (at % 4)) & !(0x10 << (at % 4)), Relaxed);
            }
        }
    }

    fn mark(&self, word: usize, bits: u8) {
        let bits = bits * 0x11;
        if self.written[word].load(Relaxed) & bits != bits {
            self.written[word].fetch_or(bits, Relaxed);
            self.recent.store(true, Relaxed);
        }
    }
}
