//! Rows dealt out to threads, and the rows of a cache that they fill.
use crate::{Block, LoadEight, StoreEight};
use contract::{Cache, Kernel, RowParts, Scale, Slots, Tensor};
use cuda_std::memory::{ld_global_b32, ld_global_b64, ld_global_v4_b32, st_global_v4_b32};

/// Eight columns of one row of all: a thread's own, so that no two threads of a launch have the same.
pub struct OwnPart {
    row: u32,
    part: u32,
}

impl OwnPart {
    /// This thread's; `None` where it has none.
    #[inline(always)]
    pub fn of<K: Kernel>(dealt: &RowParts, block: &Block<K>) -> Option<Self> {
        let (within, part) = dealt.parts.div_rem(block.thread);
        let row = block.index() * dealt.block_rows + within;
        (within < dealt.block_rows && row < dealt.rows).then_some(OwnPart { row, part })
    }

    /// The row, counted through all.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        self.row
    }

    /// Where the part is in a row of a tensor's first batch, if there it is.
    #[inline(always)]
    fn place(&self, tensor: &Tensor, row: u32, head: u32) -> Option<u64> {
        let at = tensor
            .base
            .wrapping_add((head as u64).wrapping_mul(tensor.head_bytes))
            .wrapping_add(row as u64 * tensor.row_bytes as u64)
            .wrapping_add(self.part as u64 * 16);
        (row < tensor.rows && self.part < tensor.chunks).then_some(at)
    }

    /// The part of a row of 16-bit elements, as it is; zeros where there is none.
    #[inline(always)]
    pub fn bits(&self, tensor: &Tensor, row: u32, head: u32) -> [u32; 4] {
        // SAFETY: it exists, and the base and all strides are multiples of 16, as `Tensor` promises.
        self.place(tensor, row, head).map_or([0; 4], |at| unsafe { ld_global_v4_b32(at) })
    }

    /// The part of a row of `E`; zeros where there is none.
    #[inline(always)]
    pub fn load<E: LoadEight>(&self, tensor: &Tensor, row: u32, head: u32) -> [f32; 8] {
        // SAFETY: as above.
        self.place(tensor, row, head).map_or([0.0; 8], |at| unsafe { E::load_eight(at) })
    }
}

/// One head's key and value of one row of a cache, which exist.
pub struct CacheRow {
    key: u64,
    value: u64,
    /// 16-byte chunks of each.
    chunks: u32,
}

impl CacheRow {
    /// Head `head` of the row that slot `i` says; `None` where there is no such slot, row or head.
    #[inline(always)]
    pub fn of(cache: &Cache, slots: &Slots, i: u32, head: u32) -> Option<Self> {
        if i >= slots.count {
            return None;
        }
        // SAFETY: the slot exists, and the base is a multiple of its size, as `Slots` promises.
        let slot = unsafe {
            match slots.wide {
                0 => ld_global_b32(slots.base + i as u64 * 4) as i32 as i64 as u64,
                _ => ld_global_b64(slots.base + i as u64 * 8),
            }
        };
        // Negative ones are beyond all rows, too, which are below 2^31.
        if slot >= (cache.pages * cache.page.get()) as u64 {
            return None;
        }
        let (page, row) = cache.page.div_rem(slot as u32);
        let chunk = page * cache.page_chunks + row * cache.row_chunks + head * cache.head_chunks;
        let [key, value] = [cache.keys, cache.values].map(|base| base.wrapping_add(chunk as u64 * 16));
        // By value: a reference to parameters that may be none would lay them in local memory.
        Some(CacheRow { key, value, chunks: cache.chunks })
    }

    /// Stores 16 bytes of the key and of the value, as they are.
    #[inline(always)]
    pub fn store_bits(&self, own: &OwnPart, [key, value]: [[u32; 4]; 2]) {
        self.store(own, 16, |keys, values| {
            // SAFETY: they exist, and bases are multiples of 16, as `Cache` promises.
            unsafe {
                st_global_v4_b32(keys, key);
                st_global_v4_b32(values, value);
            }
        })
    }

    /// Rounds and stores eight columns of the key and of the value.
    #[inline(always)]
    pub fn store_eight<C: StoreEight>(&self, own: &OwnPart, [key, value]: [[f32; 8]; 2]) {
        self.store(own, 8 * C::BYTES as u32, |keys, values| {
            // SAFETY: as above.
            unsafe {
                C::store_eight(keys, key);
                C::store_eight(values, value);
            }
        })
    }

    /// `store(key, value)` with the addresses of the part, of so many bytes, if it exists.
    #[inline(always)]
    fn store(&self, own: &OwnPart, bytes: u32, store: impl Fn(u64, u64)) {
        let at = own.part * bytes;
        if at < self.chunks * 16 {
            store(self.key.wrapping_add(at as u64), self.value.wrapping_add(at as u64))
        }
    }
}

/// The scale of a head of a sequence.
#[inline(always)]
pub fn load_scale(scale: &Scale, sequence: u32, head: u32) -> f32 {
    if scale.base == 0 {
        return scale.value;
    }
    let at = scale
        .base
        .wrapping_add((sequence as u64).wrapping_mul(scale.sequence_bytes))
        .wrapping_add((head as u64).wrapping_mul(scale.head_bytes));
    // SAFETY: there is one for each head of each sequence, and the base is a multiple of 4, as `Scale` says.
    f32::from_bits(unsafe { ld_global_b32(at) })
}
