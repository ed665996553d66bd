//! Parameters of decode kernels: plain data without padding, with equal bytes on both sides.
use crate::variant::no_variant;
use crate::{Cache, Counters, FastDiv, Integers, Lse, Partials, PerHead, States, Tensor, Window};

/// Varlen keys and values as a KV cache. Every row may begin a page, and each sequence has one page of
/// `max_keys` rows, at least 1. `tensor` starts at the first key. `values` is the address of the first value.
/// Keys and values have equal strides. [`DecodeOrder::starts`] must hold the integers of `cu_seqlens_k`, so
/// that no sequence ends behind the tensor.
///
/// Returns `None` if a stride is no multiple of 16 bytes or not below 2^36, or if `max_keys` is 0.
pub fn varlen_cache(tensor: &Tensor, values: u64, cu_seqlens_k: &Integers, max_keys: u32) -> Option<Cache> {
    let chunks = |bytes: u64| if bytes.is_multiple_of(16) { u32::try_from(bytes / 16).ok() } else { None };
    let row_chunks = chunks(u64::from(tensor.row_bytes))?;
    Some(Cache {
        keys: tensor.base,
        values,
        table: cu_seqlens_k.base(),
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
pub const SEARCH_WORDS: usize = 32 + MAX_SEQUENCES as usize / 32;
/// Least number of keys per split, unless the request sets a chunk or a number of splits.
pub const LEAST_KEYS: u32 = 128;

/// The distribution of sequences over work items. A work item is one split of a sequence's keys, for one
/// block of one key head's rows. Every block derives its work items from the lengths on the device; the host
/// knows bounds only.
///
/// The number of splits of a sequence with `n` visible keys is
/// - `splits`, if that is not 0;
/// - else one per `chunk` keys, if `chunk` is above 1: a sequence's results then depend on this sequence
///   only;
/// - else the sequence's part of `share`, which is `share * n / keys of all sequences`, rounded down so that
///   no wave starts almost empty, and 1 if that part is below `threshold`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOrder {
    /// Number of keys of each sequence. If `base` is 0, each of `count` sequences has `max_keys` keys.
    pub lengths: Integers,
    /// Offsets of varlen keys ([`varlen_cache`]): sequence `b` has the rows from offset `b` to offset
    /// `b + 1`, but no more than `lengths` keys. Other KV caches have no offsets.
    pub starts: Integers,
    /// Maximum number of keys per sequence.
    pub max_keys: u32,
    /// Number of splits per sequence; 0 if `chunk` or `share` decides.
    pub splits: u32,
    /// Number of keys per split; 1 if `share` decides.
    pub chunk: FastDiv,
    /// Number of key heads.
    pub kv_heads: FastDiv,
    /// Number of blocks for the rows of one key head (queries x query heads per key head).
    pub row_blocks: FastDiv,
    /// Number of rows per block; the last block has the remainder.
    pub rows: u32,
    /// Number of splits of all sequences together. The planner sets this number to about the number of splits
    /// that run at once: resident blocks / (key heads x blocks of rows per key head).
    pub share: f32,
    /// A sequence whose part of `share` is below this number is not split.
    pub threshold: f32,
    /// Number of blocks of the launch. Block `j` takes work items `j`, `j + blocks`, ..
    pub blocks: u32,
    /// Distance between the work items of two neighbouring blocks. The SMs of two neighbouring blocks share a
    /// port. The distance is half of the work items of an even wave, and twice this distance is at most
    /// `blocks`.
    pub spread: u32,
}

/// Parameters of a decode kernel and of its combine kernel. The fields that a kernel needs before its first
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
    /// If a sequence has `n` queries and `k` keys, query `i` has position `i + k - n + shift`.
    pub window: Window,
    /// `scale * log2(e)`, above 0; with softcap, `softcap * log2(e)`.
    pub scale_log2: f32,
    /// `scale / softcap`, or 0 without softcap; see [`crate::FwdParams::softcap`].
    pub softcap: f32,
    /// Scales of keys, and of values.
    pub scales: [PerHead; 2],
    /// Partial results of splits: normalised O, and LSE to base 2. Splits are numbered over all split
    /// sequences, heads are key heads, and rows are the rows of a key head. The splits of one row are
    /// contiguous.
    pub partials: Partials,
    /// One counter per block of rows, key head and sequence; none if a combine kernel runs.
    pub counters: Counters,
    /// Output, with the queries' shape.
    pub o: Tensor,
    /// LSE of each row, natural logarithm.
    pub lse: Lse,
    /// Attention sinks: one unscaled logit per query head. The base is 0 without sinks.
    pub sinks: Lse,
    /// Partial states of the same rows over other keys, with the output's dtype and natural LSE. The kernel
    /// that stores a row's result merges them into the result.
    pub states: States,
}
contract::no_padding! {
    DecodeOrder {
        lengths, starts, max_keys, splits, chunk, kv_heads, row_blocks, rows, share, threshold,
        blocks, spread
    }
    DecodeParams {
        order, cache, q, group, window, scale_log2, softcap, scales, partials, counters, o, lse,
        sinks, states
    }
}
no_variant!(DecodeParams);
