//! Device memory: allocations far apart, each byte knows whether it was written and by which block.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::error::MemoryError;

/// Allocation `i` begins in `(i + 1) << STRIDE_BITS`.
const STRIDE_BITS: u32 = 36;
/// Every byte of fresh memory: NaN in each float format.
pub(crate) const POISON: u8 = 0xff;

/// Why an access was refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// In no allocation.
    Wild,
    /// Beyond the ends of the allocation with this index.
    Outside(usize),
    Freed(usize),
}

/// How an access takes part in races between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    /// A read that takes part in communication: conflicts with ordinary writes only.
    StrongRead,
    /// Through the read-only path: nobody may write in this launch.
    ReadOnly,
    Write,
    Atomic,
}

/// One allocation. Blocks run in parallel, so every cell is atomic.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub name: String,
    pub base: u64,
    pub len: usize,
    words: Box<[AtomicU32]>,
    /// One bit a byte, four a word.
    written: Box<[AtomicU8]>,
    /// Who touched the word in this launch: [`Touch`].
    touched: Box<[AtomicU64]>,
    pub freed: AtomicBool,
    pub read_only: bool,
}

/// All allocations ever made.
#[derive(Debug, Default)]
pub(crate) struct GlobalMemory {
    pub allocations: Vec<Allocation>,
}

/// Writer and reader of a word: block + 1 in 24 bits each (`MANY` for several), the bytes in 4 bits each, and whether the write was atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Touch {
    writer: u64,
    reader: u64,
    written: u64,
    read: u64,
    atomic: bool,
}

/// More than one block.
const MANY: u64 = (1 << 24) - 1;

impl Touch {
    fn unpack(x: u64) -> Touch {
        Touch {
            writer: x & MANY,
            reader: x >> 24 & MANY,
            written: x >> 48 & 15,
            read: x >> 52 & 15,
            atomic: x >> 56 & 1 != 0,
        }
    }

    fn pack(self) -> u64 {
        self.writer | self.reader << 24 | self.written << 48 | self.read << 52 | u64::from(self.atomic) << 56
    }

    /// Adds an access of the bytes `mask` by `block`; the other block where they conflict.
    fn access(&mut self, block: u64, mask: u64, mode: Mode) -> Option<u64> {
        let me = block + 1;
        let writes = self.writer != 0 && self.writer != me && self.written & mask != 0;
        let reads = self.reader != 0 && self.reader != me && self.read & mask != 0;
        let conflict = match mode {
            Mode::Read => writes.then_some(self.writer),
            Mode::ReadOnly => (self.writer != 0 && self.written & mask != 0).then_some(self.writer),
            Mode::StrongRead => (writes && !self.atomic).then_some(self.writer),
            Mode::Write => {
                if writes {
                    Some(self.writer)
                } else {
                    reads.then_some(self.reader)
                }
            }
            Mode::Atomic => {
                if writes && !self.atomic {
                    Some(self.writer)
                } else {
                    reads.then_some(self.reader)
                }
            }
        };
        if mode == Mode::StrongRead {
            return conflict;
        }
        if matches!(mode, Mode::Read | Mode::ReadOnly) {
            self.reader = if self.reader == 0 || self.reader == me { me } else { MANY };
            self.read |= mask;
        } else {
            let shared = mode == Mode::Atomic && self.atomic && self.writer != me && self.writer != 0;
            self.writer = if shared { MANY } else { me };
            self.written = if mode == Mode::Atomic || self.writer == me { self.written | mask } else { mask };
            self.atomic = mode == Mode::Atomic;
        }
        conflict
    }
}

/// The other block of a conflict, where it is a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict(pub Option<u64>);

fn boxed<T>(n: usize, f: impl Fn() -> T) -> Box<[T]> {
    (0..n).map(|_| f()).collect()
}

impl GlobalMemory {
    pub fn alloc(&mut self, name: &str, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        if bytes > 1 << (STRIDE_BITS - 1)
            || !align.is_power_of_two()
            || align > 1 << 20
            || self.allocations.len() >= 1 << 20
        {
            return Err(MemoryError::BadAllocation { name: name.into(), bytes, align });
        }
        // Aligned as asked and not better, so that a kernel which needs more is caught.
        let base = ((self.allocations.len() as u64 + 1) << STRIDE_BITS) + align as u64;
        let words = bytes.div_ceil(4);
        self.allocations.push(Allocation {
            name: name.into(),
            base,
            len: bytes,
            words: boxed(words, || AtomicU32::new(u32::from_ne_bytes([POISON; 4]))),
            written: boxed(words, || AtomicU8::new(0)),
            touched: boxed(words, || AtomicU64::new(0)),
            freed: AtomicBool::new(false),
            read_only: false,
        });
        Ok(base)
    }

    /// Forgets what the allocation at `address` holds, and remembers that there was one.
    pub fn free(&mut self, address: u64) {
        let index = self.owner(address).map(|(index, _)| index);
        let Some(allocation) = index.and_then(|index| self.allocations.get_mut(index)) else { return };
        allocation.freed.store(true, Relaxed);
        (allocation.words, allocation.written, allocation.touched) = Default::default();
    }

    /// Index and allocation that `address` points into or past.
    pub fn owner(&self, address: u64) -> Option<(usize, &Allocation)> {
        let index = (address >> STRIDE_BITS).checked_sub(1)? as usize;
        Some((index, self.allocations.get(index)?))
    }

    /// The allocation and byte offset of `bytes` bytes at `address`.
    #[inline]
    pub fn resolve(&self, address: u64, bytes: usize) -> Result<(&Allocation, usize), Fault> {
        let (index, allocation) = self.owner(address).ok_or(Fault::Wild)?;
        let offset = address.wrapping_sub(allocation.base) as usize;
        if address < allocation.base || offset.saturating_add(bytes) > allocation.len {
            return Err(Fault::Outside(index));
        }
        if allocation.freed.load(Relaxed) {
            return Err(Fault::Freed(index));
        }
        Ok((allocation, offset))
    }

    /// As [`Self::resolve`], for the host.
    pub fn host(&self, address: u64, bytes: usize) -> Result<(&Allocation, usize), MemoryError> {
        self.resolve(address, bytes).map_err(|fault| match fault {
            Fault::Wild => MemoryError::Unknown { address },
            Fault::Freed(index) => MemoryError::Freed { name: self.allocations[index].name.clone() },
            Fault::Outside(index) => {
                let Allocation { name, base, len, .. } = &self.allocations[index];
                MemoryError::OutOfBounds {
                    name: name.clone(),
                    offset: address.wrapping_sub(*base) as i64,
                    bytes,
                    size: *len,
                }
            }
        })
    }

    /// Forgets which block touched what: a new launch begins.
    pub fn begin_launch(&mut self) {
        for allocation in &mut self.allocations {
            allocation.touched.iter_mut().for_each(|word| *word.get_mut() = 0);
        }
    }
}

impl Allocation {
    /// Copies bytes out; the mask says which of the first 64 were never written.
    #[inline]
    pub fn load(&self, offset: usize, out: &mut [u8]) -> u64 {
        let mut missing = 0;
        if offset.is_multiple_of(4) && out.len().is_multiple_of(4) {
            for (i, chunk) in out.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&self.words[offset / 4 + i].load(Relaxed).to_le_bytes());
                missing |= u64::from(!self.written[offset / 4 + i].load(Relaxed) & 15) << (4 * i % 64);
            }
        } else {
            for (i, byte) in out.iter_mut().enumerate() {
                let at = offset + i;
                *byte = self.words[at / 4].load(Relaxed).to_le_bytes()[at % 4];
                missing |= u64::from(!self.written[at / 4].load(Relaxed) >> (at % 4) & 1) << (i % 64);
            }
        }
        missing
    }

    /// Copies bytes in and marks them written.
    #[inline]
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        if offset.is_multiple_of(4) && bytes.len().is_multiple_of(4) {
            for (i, chunk) in bytes.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
                self.words[offset / 4 + i].store(word, Relaxed);
                self.mark(offset / 4 + i, 15);
            }
        } else {
            for (i, &byte) in bytes.iter().enumerate() {
                let (word, shift) = ((offset + i) / 4, (offset + i) % 4 * 8);
                let merge = |old: u32| Some(old & !(0xff << shift) | u32::from(byte) << shift);
                let _ = self.words[word].fetch_update(Relaxed, Relaxed, merge);
                self.mark(word, 1 << ((offset + i) % 4));
            }
        }
    }

    fn mark(&self, word: usize, bits: u8) {
        if self.written[word].load(Relaxed) & bits != bits {
            self.written[word].fetch_or(bits, Relaxed);
        }
    }

    /// Whether byte `offset` was ever written.
    pub fn is_written(&self, offset: usize) -> bool {
        self.written[offset / 4].load(Relaxed) >> (offset % 4) & 1 != 0
    }

    /// Forgets that the bytes were written.
    pub fn unmark(&self, offset: usize, bytes: usize) {
        for at in offset..offset + bytes {
            self.written[at / 4].fetch_and(!(1 << (at % 4)), Relaxed);
        }
    }

    /// Notes an access by `block` and says whether another block's access conflicts with it.
    #[inline]
    pub fn touch(&self, offset: usize, bytes: usize, block: u64, mode: Mode) -> Option<Conflict> {
        let mut found = None;
        let end = offset + bytes;
        for word in offset / 4..end.div_ceil(4) {
            let from = offset.max(word * 4) - word * 4;
            let to = end.min(word * 4 + 4) - word * 4;
            let mask = (1u64 << to) - (1u64 << from);
            let cell = &self.touched[word];
            let mut old = cell.load(Relaxed);
            loop {
                let mut touch = Touch::unpack(old);
                let conflict = touch.access(block, mask, mode);
                let new = touch.pack();
                if new != old
                    && let Err(now) = cell.compare_exchange_weak(old, new, Relaxed, Relaxed)
                {
                    old = now;
                    continue;
                }
                if let Some(other) = conflict {
                    found.get_or_insert(Conflict((other != MANY).then(|| other - 1)));
                }
                break;
            }
        }
        found
    }
}
