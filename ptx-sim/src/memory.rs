//! Device memory. Allocations lie at distant addresses, and their pages are allocated at the first access.
//! For each byte, the simulator records whether it was written, and by which access.

mod page;

use std::sync::{
    MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::{
    error::MemoryError,
    shadow::{CELL, Readers, Shadow},
};
use page::Page;

/// Allocation `i` begins within the 2^STRIDE_BITS bytes from `(i + 1) << STRIDE_BITS` on.
const STRIDE_BITS: u32 = 36;
/// The value of every byte of fresh memory, which makes NaN in each float format.
pub(crate) const POISON: u8 = 0xff;

/// The reason why an access was refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The address lies in no allocation.
    Wild,
    /// The address lies beyond the ends of the allocation with this index.
    Outside(usize),
    Freed(usize),
}

/// Number of bytes of a page. The first access to a page allocates it.
const PAGE: usize = 4096;
/// Number of cells of a page.
pub(crate) const PAGE_CELLS: u64 = (PAGE / CELL) as u64;

/// The initial content of an allocation: a function that fills in the bytes from an offset on.
pub(crate) type Content = dyn Fn(usize, &mut [u8]) + Send + Sync;

/// One allocation.
pub(crate) struct Allocation {
    pub name: String,
    pub base: u64,
    pub len: usize,
    /// The pages of the allocation; `base` lies in the first page.
    pages: Box<[OnceLock<Box<Page>>]>,
    /// The initial content, without which the bytes are uninitialised.
    content: Option<Box<Content>>,
    pub freed: AtomicBool,
    pub read_only: bool,
}

/// All allocations that were ever made.
#[derive(Default)]
pub(crate) struct GlobalMemory {
    pub allocations: Vec<Allocation>,
}

impl GlobalMemory {
    pub fn alloc(
        &mut self,
        name: &str,
        bytes: usize,
        align: usize,
        content: Option<Box<Content>>,
    ) -> Result<u64, MemoryError> {
        if bytes > 1 << (STRIDE_BITS - 1)
            || !align.is_power_of_two()
            || align > 1 << 20
            || self.allocations.len() >= 1 << 20
        {
            return Err(MemoryError::BadAllocation { name: name.into(), bytes, align });
        }
        // The address has exactly the requested alignment, so that the simulator catches a kernel that needs
        // more.
        let base = ((self.allocations.len() as u64 + 1) << STRIDE_BITS) + align as u64;
        let pages = (base as usize % PAGE + bytes).div_ceil(PAGE);
        self.allocations.push(Allocation {
            name: name.into(),
            base,
            len: bytes,
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
            content,
            freed: AtomicBool::new(false),
            read_only: false,
        });
        Ok(base)
    }

    /// Frees the allocation at `address`, and drops its content. The allocation stays in the list, so that
    /// later accesses are reported.
    pub fn free(&mut self, address: u64) {
        let index = self.owner(address).map(|(index, _)| index);
        let Some(allocation) = index.and_then(|index| self.allocations.get_mut(index)) else { return };
        allocation.freed.store(true, Relaxed);
        (allocation.pages, allocation.content) = (Box::default(), None);
    }

    /// The allocation that contains `address` or ends before it, with its index.
    pub fn owner(&self, address: u64) -> Option<(usize, &Allocation)> {
        let index = (address >> STRIDE_BITS).checked_sub(1)? as usize;
        Some((index, self.allocations.get(index)?))
    }

    /// The allocation that contains the `bytes` bytes at `address`, and their offset in it.
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

    /// Like [`Self::resolve`], for accesses of the host.
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

    /// Begins a new launch, and forgets the accesses of the previous launch. All earlier launches have ended,
    /// unless the launch is `dependent`.
    pub fn begin_launch(&mut self, dependent: bool) {
        let pages = self.allocations.iter_mut().flat_map(|allocation| &mut allocation.pages);
        for page in pages.filter_map(OnceLock::get_mut) {
            *page.shadow.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
            if !dependent && std::mem::take(page.recent.get_mut()) {
                page.written.iter_mut().for_each(|word| *word.get_mut() &= 15);
            }
        }
    }

    /// The accesses to the page of `cell` (an address over [`CELL`]).
    pub fn shadow(&self, cell: u64) -> Option<MutexGuard<'_, Option<Box<Shadow>>>> {
        let (_, allocation) = self.owner(cell * CELL as u64)?;
        let page = allocation.page(allocation.place(cell * CELL as u64));
        Some(page.shadow.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An empty shadow of one page.
pub(crate) fn page_shadow(readers: Readers) -> Box<Shadow> {
    Box::new(Shadow::new(PAGE_CELLS as usize, readers))
}

impl Allocation {
    /// Number of bytes from the start of the first page to `address`.
    fn place(&self, address: u64) -> usize {
        (address - self.base / PAGE as u64 * PAGE as u64) as usize
    }

    fn page(&self, at: usize) -> &Page {
        self.pages[at / PAGE].get_or_init(|| self.new_page(at / PAGE * PAGE))
    }

    /// The page that begins at byte `at` of the allocation's pages.
    #[cold]
    fn new_page(&self, at: usize) -> Box<Page> {
        let page = Page::new();
        if let Some(content) = &self.content {
            let base = self.place(self.base);
            let (from, to) = (at.max(base), (at + PAGE).min(base + self.len));
            let mut bytes = vec![0; to - from];
            content(from - base, &mut bytes);
            page.put(from - at, &bytes);
        }
        page
    }

    /// The page, for reads; `None` if the page is uninitialised.
    fn known_page(&self, at: usize) -> Option<&Page> {
        match self.pages[at / PAGE].get() {
            None if self.content.is_some() => Some(self.page(at)),
            page => page.map(|page| &**page),
        }
    }

    /// Copies bytes to `out`. Returns a mask of those of the first 64 bytes that were never written.
    #[inline]
    pub fn load(&self, offset: usize, out: &mut [u8]) -> u64 {
        let (start, mut missing, mut done) = (self.place(self.base) + offset, 0, 0);
        while done < out.len() {
            let at = start + done;
            let n = (out.len() - done).min(PAGE - at % PAGE);
            let part = &mut out[done..done + n];
            let unwritten = match self.known_page(at) {
                Some(page) => page.load(at % PAGE, part),
                None => {
                    part.fill(POISON);
                    u64::MAX >> (64 - n.min(64))
                }
            };
            missing |= unwritten << done.min(63);
            done += n;
        }
        missing
    }

    /// Stores bytes and marks them as written. Returns a mask of those of the first 64 bytes whose values
    /// changed. If several blocks write the same bytes concurrently, only one of the writes counts as a
    /// change.
    #[inline]
    pub fn store(&self, offset: usize, bytes: &[u8]) -> u64 {
        let (start, mut changed, mut done) = (self.place(self.base) + offset, 0, 0);
        while done < bytes.len() {
            let at = start + done;
            let n = (bytes.len() - done).min(PAGE - at % PAGE);
            changed |= self.page(at).store(at % PAGE, &bytes[done..done + n]) << done.min(63);
            done += n;
        }
        changed
    }

    /// Stores bytes of the host, which waits for all launches.
    pub fn write(&self, offset: usize, mut bytes: &[u8]) {
        let mut at = self.place(self.base) + offset;
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(PAGE - at % PAGE));
            self.page(at).put(at % PAGE, part);
            (at, bytes) = (at + part.len(), rest);
        }
    }

    /// Whether a launch for which a dependent launch must wait wrote one of the bytes.
    pub fn recent(&self, offset: usize, bytes: usize) -> bool {
        let start = self.place(self.base) + offset;
        (start..start + bytes).any(|at| {
            self.known_page(at)
                .is_some_and(|page| page.written[at % PAGE / 4].load(Relaxed) >> (4 + at % 4) & 1 != 0)
        })
    }

    /// Whether any access has written byte `offset`.
    pub fn is_written(&self, offset: usize) -> bool {
        let at = self.place(self.base) + offset;
        self.known_page(at).is_some_and(|page| page.written[at % PAGE / 4].load(Relaxed) >> (at % 4) & 1 != 0)
    }

    /// Forgets that the bytes were written.
    pub fn unmark(&self, offset: usize, bytes: usize) {
        self.clear(offset, bytes, 0x11);
    }

    /// Clears the bits of each byte that `bits` marks for the first byte of a word.
    fn clear(&self, offset: usize, bytes: usize, bits: u8) {
        let mut at = self.place(self.base) + offset;
        let end = at + bytes;
        while at < end {
            // The bytes of one word are cleared at once, because atomic operations are slow.
            let n = (4 - at % 4).min(end - at);
            if let Some(page) = self.known_page(at) {
                let mask = (at % 4..at % 4 + n).fold(0, |mask, byte| mask | bits << byte);
                page.written[at % PAGE / 4].fetch_and(!mask, Relaxed);
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host writes as a kernel does, but leaves no mark for dependent launches.
    #[test]
    fn the_hosts_bytes_are_those_of_a_kernels_store() {
        let bytes: Vec<u8> = (0..9000).map(|i| (i * 7 + i / 256) as u8).collect();
        for (offset, len) in
            [(0, 8), (1, 1), (1, 2), (3, 2), (2, 9), (5, 4), (4090, 13), (4095, 4200), (7, 0)]
        {
            let mut memory = GlobalMemory::default();
            let address = memory.alloc("x", 9000, 4, None).unwrap();
            let other = memory.alloc("y", 9000, 4, None).unwrap();
            let (host, kernel) =
                (memory.resolve(address, 9000).unwrap().0, memory.resolve(other, 9000).unwrap().0);
            for allocation in [host, kernel] {
                allocation.store(0, &[1, 2, 3, 4, 5, 6, 7]);
            }
            host.write(offset, &bytes[..len]);
            kernel.store(offset, &bytes[..len]);
            for at in 0..9000 {
                let read = |allocation: &Allocation| {
                    let mut byte = [0];
                    let missing = allocation.load(at, &mut byte);
                    (byte, missing, allocation.is_written(at))
                };
                assert_eq!(read(host), read(kernel), "{at} of {len} at {offset}");
                let is_hosts = (offset..offset + len).contains(&at);
                assert_eq!(host.recent(at, 1), at < 7 && !is_hosts, "{at} of {len} at {offset}");
            }
        }
    }

    /// If several writers write the same bytes, exactly one of the writes changes them.
    #[test]
    fn what_is_written_changes_once() {
        let mut memory = GlobalMemory::default();
        let address = memory.alloc("x", 8192, 4, None).unwrap();
        let (allocation, _) = memory.resolve(address, 8192).unwrap();
        // The bytes are written as words, as single bytes, and across the end of a page.
        for (offset, bytes) in [(0, &[1, 2, 3, 4, 5, 6, 7, 8][..]), (33, &[9; 3]), (4088, &[7; 12])] {
            let all = u64::MAX >> (64 - bytes.len());
            assert_eq!(allocation.store(offset, bytes), all, "{offset}");
            assert_eq!(allocation.store(offset, bytes), 0, "{offset}");
            let mut other = bytes.to_vec();
            other[2] += 1;
            assert_eq!(allocation.store(offset, &other), 4, "{offset}");
        }
    }
}
