//! Writes the row of a KV cache that a slot names.
use cuda_std::memory::{ld_global_b32, ld_global_b64, st_global_v4_b32};
use spec::{Cache, Slots};
use tile::global::{OwnPart, StoreEight};

/// The key and the value of one head in an existing row of a cache.
pub struct CacheRow {
    key: u64,
    value: u64,
    /// Number of 16-byte chunks of the key, and of the value.
    chunks: u32,
}

impl CacheRow {
    /// Returns head `head` of the row that slot `i` names, or `None` if the slot, the row or the head does
    /// not exist.
    #[inline(always)]
    pub fn new(cache: &Cache, slots: &Slots, i: u32, head: u32) -> Option<Self> {
        if i >= slots.count {
            return None;
        }
        // SAFETY: the slot exists, and the base is a multiple of the slot's size, as `Slots` promises.
        let slot = unsafe {
            match slots.wide {
                0 => ld_global_b32(slots.base + i as u64 * 4) as i32 as i64 as u64,
                _ => ld_global_b64(slots.base + i as u64 * 8),
            }
        };
        // A negative slot becomes a large unsigned number, which is past the last row: there are fewer than
        // 2^31 rows.
        if slot >= (cache.pages * cache.page.get()) as u64 {
            return None;
        }
        let (page, row) = cache.page.div_rem(slot as u32);
        let chunk = page * cache.page_chunks + row * cache.row_chunks + head * cache.head_chunks;
        let [key, value] = [cache.keys, cache.values].map(|base| base.wrapping_add(chunk as u64 * 16));
        // The function returns a value, because a reference to optional parameters would put them into local
        // memory.
        Some(CacheRow { key, value, chunks: cache.chunks })
    }

    /// Stores this thread's 16 bytes of the key and 16 bytes of the value.
    #[inline(always)]
    pub fn store_bits(&self, own: &OwnPart, [key, value]: [[u32; 4]; 2]) {
        self.store(own, 16, |keys, values| {
            // SAFETY: the part exists in key and value, and the bases are multiples of 16, as `Cache`
            // promises.
            unsafe {
                st_global_v4_b32(keys, key);
                st_global_v4_b32(values, value);
            }
        })
    }

    /// Rounds and stores this thread's eight columns of the key and eight columns of the value.
    #[inline(always)]
    pub fn store_eight<C: StoreEight>(&self, own: &OwnPart, [key, value]: [[f32; 8]; 2]) {
        self.store(own, 8 * C::BYTES as u32, |keys, values| {
            // SAFETY: the part exists in key and value, and the bases are multiples of 16, as `Cache`
            // promises.
            unsafe {
                C::store_eight(keys, key);
                C::store_eight(values, value);
            }
        })
    }

    /// If the thread's part (of `bytes` bytes) exists, calls `store(key address, value address)`.
    #[inline(always)]
    fn store(&self, own: &OwnPart, bytes: u32, store: impl Fn(u64, u64)) {
        let at = own.part() * bytes;
        if at < self.chunks * 16 {
            store(self.key.wrapping_add(at as u64), self.value.wrapping_add(at as u64))
        }
    }
}
