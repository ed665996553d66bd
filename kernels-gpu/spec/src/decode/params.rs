//! Parameters of decode kernels: plain data without padding, with equal bytes on both sides.
use crate::{Cache, Counters, FastDiv, Integers, Lse, Partials, PerHead, Tensor, Window};

/// Varlen keys and values as a KV cache. Every row may begin a page, and a sequence has one page of
/// `max_keys` rows, at least 1. `tensor` starts at the first key, and `values` is the address of its value;
/// both tensors have equal strides. [`DecodeOrder::starts`] must hold the integers of `cu_seqlens_k`, so that
/// sequences end before the tensor does.
///
/// `None` if a stride is not a multiple of 16 bytes below 2^36, or `max_keys` is 0.
pub fn varlen_cache(tensor: &Tensor, values: u64, cu_seqlens_k: &Integers, max_keys: u32) -> Option<Cache> {
    let chunks = |bytes: u64| if bytes.is_multiple_of(16) { u32::try_from(bytes / 16).ok() } else { None };
    let row_chunks = chunks(u64::from(tensor.row_bytes))?;
    Some(Cache {
        keys: tensor.base,
        values,
        table: cu_seqlens_k.base,
        page_chunks: row_chunks,
        row_chunks,
        head_chunks: chunks(tensor.head_bytes)?,
        pages: tensor.rows,
        table_stride: 1,
        columns: 1,
        page: FastDiv::new(max_keys)?,
        chunks: tensor.chunks,
    })
}

/// Maximum number of sequences per launch: 32 per word of the schedule's shared memory.
pub const MAX_SEQUENCES: u32 = 32 * 128;
/// Words that a block's warps exchange while they find their work item.
pub const TALLY: usize = 32 + MAX_SEQUENCES as usize / 32;
/// Minimum of keys per split, unless the request sets a chunk or a number of splits.
pub const LEAST_KEYS: u32 = 128;

/// The distribution of sequences over work items. A work item is one split of a sequence's keys, for one
/// block of one key head's rows. Every block derives its work items from the lengths on the device; the host
/// knows bounds only.
///
/// A sequence with `n` visible keys has
/// - `splits` splits, if that is not 0;
/// - one split per `chunk` keys, if that is above 1: a sequence's results then depend on the sequence only;
/// - otherwise its part of `share`, `share * n / keys of all sequences`, rounded down so that no wave starts
///   almost empty; one split if that part is below `threshold`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOrder {
    /// Keys per sequence. If `base` is 0, each of `count` sequences has `max_keys` keys.
    pub lengths: Integers,
    /// Offsets of varlen keys ([`varlen_cache`]): sequence `b` has the rows from offset `b` to offset
    /// `b + 1`, and at most the keys of `lengths`. Empty for other KV caches.
    pub starts: Integers,
    /// Maximum of keys per sequence.
    pub max_keys: u32,
    /// Splits per sequence; 0 if `chunk` or `share` decides.
    pub splits: u32,
    /// Keys per split; 1 if `share` decides.
    pub chunk: FastDiv,
    /// Key heads.
    pub kv_heads: FastDiv,
    /// Blocks per key head's rows (queries x query heads per key head).
    pub row_blocks: FastDiv,
    /// Rows per block; the last block has the remainder.
    pub rows: u32,
    /// Splits of all sequences together: about the number that the device holds at once (resident blocks /
    /// key heads and their blocks of rows), adjusted by the planner.
    pub share: f32,
    /// Number of shares below which a sequence is not split.
    pub threshold: f32,
    /// Blocks of the launch. Block `j` takes work items `j`, `j + blocks`, ..
    pub blocks: u32,
    /// Distance between the work items of neighbouring blocks, because two SMs share a port: half of the work
    /// items of an even wave. Twice this distance is at most `blocks`.
    pub spread: u32,
}

/// Parameters of a decode kernel and of its combine kernel. Fields that the kernel needs before the first
/// copy come first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeParams {
    /// The distribution of splits over blocks.
    pub order: DecodeOrder,
    /// Keys and values.
    pub cache: Cache,
    /// Queries `[sequence][head][query][column]`, with equal query counts.
    pub q: Tensor,
    /// Query heads per key head.
    pub group: FastDiv,
    /// Query `i` of `n`, on `k` keys, has position `i + k - n + shift`.
    pub window: Window,
    /// `scale * log2(e)`, above 0; with softcap `softcap * log2(e)`.
    pub scale_log2: f32,
    /// `scale / softcap`, or 0: as [`crate::FwdParams::softcap`].
    pub softcap: f32,
    /// Scales of keys, and of values.
    pub scales: [PerHead; 2],
    /// Partial results of splits: normalised O, and LSE (base 2). Splits count over all split sequences,
    /// heads are key heads, rows are rows of a key head. The splits of a row are contiguous.
    pub partials: Partials,
    /// One counter per block of rows, key head and sequence; none if a combine kernel runs.
    pub counters: Counters,
    /// Output, with the queries' shape.
    pub o: Tensor,
    /// LSE of each row, natural logarithm.
    pub lse: Lse,
    /// Attention sinks: one unscaled logit per query head; base 0 without sinks.
    pub sinks: Lse,
}
contract::no_padding! {
    DecodeOrder {
        lengths, starts, max_keys, splits, chunk, kv_heads, row_blocks, rows, share, threshold,
        blocks, spread
    }
    DecodeParams {
        order, cache, q, group, window, scale_log2, softcap, scales, partials, counters, o, lse,
        sinks
    }
}
