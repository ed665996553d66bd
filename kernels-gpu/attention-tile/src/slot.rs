//! Writes the row of a KV cache that a slot names.
use crate::per_head::per_head_at;
use cuda_std::memory::{ld_global_b32, st_global_b32, st_global_v2_b32, st_global_v4_b32};
use spec::{Cache, E4m3Scaled, PerHead, Slots};
use tile::Warp;
use tile::global::{OwnPart, StoreEight};

/// Parts of eight columns in a row of [`E4m3Scaled`] before the columns without a scale, and in a block of
/// columns with one scale.
const SCALED_PARTS: u32 = E4m3Scaled::SCALED as u32 / 8;
const BLOCK_PARTS: u32 = E4m3Scaled::PER_SCALE as u32 / 8;
/// The bytes of such a row at which scales begin, and columns without a scale.
const SCALES_BYTE: u32 = E4m3Scaled::SCALED as u32;
const PLAIN_BYTE: u32 = (E4m3Scaled::ROW_BYTES - 2 * E4m3Scaled::PLAIN) as u32;

/// The key and the value of one head in an existing row of a cache.
pub struct CacheRow {
    key: u64,
    value: u64,
    /// Number of bytes of the key that exist, and of the value.
    bytes: [u32; 2],
    /// The slot.
    slot: u32,
}

impl CacheRow {
    /// Returns head `head` of the row that slot `i` names, or `None` if the slot, the row or the head does
    /// not exist.
    #[inline(always)]
    pub fn new(cache: &Cache, slots: &Slots, i: u32, head: u32, _: &OwnPart) -> Option<Self> {
        if i >= slots.count {
            return None;
        }
        // SAFETY: the slot exists, and the base is a multiple of the slot's size, as `Slots` promises.
        let slot = unsafe { Integer::load(slots.base, slots.wide, i) }.value() as u64;
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
        Some(CacheRow { key, value, bytes: [cache.chunks * 16; 2], slot: slot as u32 })
    }

    /// The row with its key (0) or its value (1) alone: stores write nothing else. In a latent cache, the
    /// value is a part of the key.
    #[inline(always)]
    pub fn of_one(self, which: u32) -> Self {
        let [key, value] = self.bytes;
        CacheRow { bytes: if which == 0 { [key, 0] } else { [0, value] }, ..self }
    }

    /// Stores this thread's 16 bytes of the key and 16 bytes of the value.
    #[inline(always)]
    pub fn store_bits(&self, own: &OwnPart, [key, value]: [[u32; 4]; 2]) {
        self.store(own, 16, [key, value], |at, bits| {
            // SAFETY: the part exists, and the base is a multiple of 16, as `Cache` promises.
            unsafe { st_global_v4_b32(at, bits) }
        })
    }

    /// Rounds and stores this thread's eight columns of the key and eight columns of the value.
    #[inline(always)]
    pub fn store_eight<C: StoreEight>(&self, own: &OwnPart, [key, value]: [[f32; 8]; 2]) {
        self.store(own, 8 * C::BYTES as u32, [key, value], |at, x| {
            // SAFETY: the part exists, and the base is a multiple of 16, as `Cache` promises.
            unsafe { C::store_eight(at, x) }
        })
    }

    /// Stores this thread's eight columns of the key and eight columns of the value, as integers of eight
    /// bits.
    #[inline(always)]
    pub fn store_integers(&self, own: &OwnPart, key_value: [[u32; 2]; 2]) {
        self.store(own, 8, key_value, |at, x| {
            // SAFETY: the part exists, and the base is a multiple of 16, as `Cache` promises.
            unsafe { st_global_v2_b32(at, x) }
        })
    }

    /// Stores this thread's eight columns of a key in a row of [`E4m3Scaled`]: `x`, rounded to `C`, or the
    /// bits of columns that have no scale. The thread with a block's first columns stores its scale.
    #[inline(always)]
    pub fn store_scaled<C: StoreEight>(&self, own: &OwnPart, x: [f32; 8], scale: f32, bits: [u32; 4]) {
        let part = own.part();
        let is_scaled = part < SCALED_PARTS;
        let at = if is_scaled { 8 * part } else { PLAIN_BYTE + 16 * (part - SCALED_PARTS) };
        if at >= self.bytes[0] {
            return;
        }
        let to = self.key.wrapping_add(at as u64);
        if !is_scaled {
            // SAFETY: the part exists. The base and the byte of a row are multiples of 16.
            unsafe { st_global_v4_b32(to, bits) }
            return;
        }
        // SAFETY: the part exists, and the base is a multiple of 16, as `Cache` promises.
        unsafe { C::store_eight(to, x) }
        let at = SCALES_BYTE + 4 * (part / BLOCK_PARTS);
        if part.is_multiple_of(BLOCK_PARTS) && at < self.bytes[0] {
            // SAFETY: the scale lies in the row, which has a multiple of 16 bytes, at a multiple of 4.
            unsafe { st_global_b32(self.key.wrapping_add(at as u64), scale.to_bits()) }
        }
    }

    /// Stores the scales of the key and of the value of head `head`, once per warp.
    #[inline(always)]
    pub fn store_scales(&self, to: &[PerHead; 2], head: u32, scales: [f32; 2], warp: Warp) {
        if warp.lane() == 0 {
            for which in 0..2 {
                let at = per_head_at(&to[which], self.slot, head);
                // SAFETY: the slot exists. Each slot of every head has a scale, at a multiple of 4, as
                // `PerHead` promises.
                unsafe { st_global_b32(at, scales[which].to_bits()) }
            }
        }
    }

    /// Stores the scale of the key (0) or of the value (1) of head `head`, once per half of a warp.
    #[inline(always)]
    pub fn store_scale(&self, to: &[PerHead; 2], which: u32, head: u32, scale: f32, warp: Warp) {
        if warp.lane().is_multiple_of(16) {
            let [key, value] = [0, 1].map(|which| per_head_at(&to[which], self.slot, head));
            // SAFETY: the slot exists. Each slot of every head has a scale, at a multiple of 4, as `PerHead`
            // promises.
            unsafe { st_global_b32(if which == 0 { key } else { value }, scale.to_bits()) }
        }
    }

    /// Calls `store` with the address of the thread's part (of `bytes` bytes) of the key, and with its
    /// number, if the part exists; then of the value.
    #[inline(always)]
    fn store<T>(&self, own: &OwnPart, bytes: u32, [key, value]: [T; 2], store: impl Fn(u64, T)) {
        let at = own.part() * bytes;
        if at < self.bytes[0] {
            store(self.key.wrapping_add(at as u64), key)
        }
        if at < self.bytes[1] {
            store(self.value.wrapping_add(at as u64), value)
        }
    }
}

/// An i32, or an i64, as it is in memory. A load that computes the number would make later loads wait.
#[derive(Clone, Copy)]
pub(crate) struct Integer {
    low: u32,
    high: u32,
    wide: u32,
}

impl Integer {
    /// Loads integer `i` of an array of i32, or of i64 if `wide` is not 0.
    ///
    /// # Safety
    /// - The integer exists, no kernel writes it, and `base` is a global address and a multiple of its size.
    #[inline(always)]
    pub(crate) unsafe fn load(base: u64, wide: u32, i: u32) -> Self {
        let at = base.wrapping_add(i as u64 * if wide == 0 { 4 } else { 8 });
        // SAFETY: the caller keeps the preconditions. An i64 has a high word behind its low word.
        let [low, high] =
            unsafe { [ld_global_b32(at), if wide == 0 { 0 } else { ld_global_b32(at.wrapping_add(4)) }] };
        Integer { low, high, wide }
    }

    /// The number.
    #[inline(always)]
    pub(crate) fn value(self) -> i64 {
        let high = if self.wide == 0 { (self.low as i32 >> 31) as u32 } else { self.high };
        (self.low as u64 | (high as u64) << 32) as i64
    }
}
