//! Rows dealt out to threads, and the rows of a cache that they fill.
use crate::{Block, LoadEight, StoreEight};
use contract::{Cache, Kernel, PerHead, RowParts, RowValues, Slots, Tensor};
use cuda_std::memory::{ld_global_b32, ld_global_b64, ld_global_v4_b32, st_global_b32, st_global_v4_b32};

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

    /// Makes something of each thread's part, and stores it when all threads of the block have loaded what
    /// they need: so it may take the place of what it was made of, within a row too.
    #[inline(always)]
    pub fn in_place<K: Kernel, R>(
        dealt: &RowParts,
        block: &mut Block<K>,
        make: impl FnOnce(&OwnPart) -> R,
        store: impl FnOnce(&OwnPart, R),
    ) {
        let made = Self::of(dealt, block).map(|own| (make(&own), own));
        block.sync();
        if let Some((made, own)) = made {
            store(&own, made)
        }
    }

    /// Where the part, of so many bytes, is in a head's row `[batch, row, head]` of a tensor, if there it is.
    #[inline(always)]
    fn place(&self, tensor: &Tensor, [batch, row, head]: [u32; 3], bytes: u32) -> Option<u64> {
        let at = tensor
            .base
            .wrapping_add((batch as u64).wrapping_mul(tensor.batch_bytes))
            .wrapping_add((head as u64).wrapping_mul(tensor.head_bytes))
            .wrapping_add(row as u64 * tensor.row_bytes as u64)
            .wrapping_add((self.part * bytes) as u64);
        (row < tensor.rows && self.part * bytes < tensor.chunks * 16).then_some(at)
    }

    /// The part of a head's row `[batch, row, head]` of 16-bit elements, as it is; zeros where there is none.
    #[inline(always)]
    pub fn bits(&self, tensor: &Tensor, of: [u32; 3]) -> [u32; 4] {
        // SAFETY: it exists, and the base and all strides are multiples of 16, as `Tensor` promises.
        self.place(tensor, of, 16).map_or([0; 4], |at| unsafe { ld_global_v4_b32(at) })
    }

    /// The part of a head's row of `E`; zeros where there is none.
    #[inline(always)]
    pub fn load<E: LoadEight>(&self, tensor: &Tensor, of: [u32; 3]) -> [f32; 8] {
        // SAFETY: as above.
        self.place(tensor, of, const { 8 * E::BYTES as u32 })
            .map_or([0.0; 8], |at| unsafe { E::load_eight(at) })
    }

    /// Rounds and stores the part of a head's row of `E`, as far as it exists.
    #[inline(always)]
    pub fn store<E: StoreEight>(&self, tensor: &Tensor, of: [u32; 3], x: [f32; 8]) {
        if let Some(at) = self.place(tensor, of, const { 8 * E::BYTES as u32 }) {
            // SAFETY: as above.
            unsafe { E::store_eight(at, x) }
        }
    }

    /// Stores a value of the row, once, where it is wanted.
    #[inline(always)]
    pub fn store_value(&self, values: &RowValues, of: [u32; 3], x: f32) {
        if self.part == 0 && values.base != 0 {
            // SAFETY: there is one for each row of each head, and base and strides are multiples of 4, as
            // `RowValues` promises.
            unsafe { st_global_b32(value_at(values, of), x.to_bits()) }
        }
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

#[inline(always)]
fn value_at(values: &RowValues, [batch, row, head]: [u32; 3]) -> u64 {
    values
        .base
        .wrapping_add((batch as u64).wrapping_mul(values.batch_bytes))
        .wrapping_add((head as u64).wrapping_mul(values.head_bytes))
        .wrapping_add((row as u64).wrapping_mul(values.row_bytes))
}

/// The value of a head's row `[batch, row, head]`.
#[inline(always)]
pub fn load_value(values: &RowValues, of: [u32; 3]) -> f32 {
    // SAFETY: there is one for each row of each head, and base and strides are multiples of 4, as `RowValues`
    // promises.
    f32::from_bits(unsafe { ld_global_b32(value_at(values, of)) })
}

/// The number of a head of a sequence.
#[inline(always)]
pub fn load_per_head(scale: &PerHead, sequence: u32, head: u32) -> f32 {
    if scale.base == 0 {
        return scale.value;
    }
    let at = scale
        .base
        .wrapping_add((sequence as u64).wrapping_mul(scale.sequence_bytes))
        .wrapping_add((head as u64).wrapping_mul(scale.head_bytes));
    // SAFETY: there is one for each head of each sequence, and the base is a multiple of 4, as `PerHead`
    // promises.
    f32::from_bits(unsafe { ld_global_b32(at) })
}
