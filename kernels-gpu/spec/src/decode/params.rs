//! Parameters of decode kernels: plain data, no padding, the same bytes on both sides.
use crate::{Cache, Counters, FastDiv, Integers, Lse, Partials, PerHead, Tensor, Window};

/// The keys and values of all sequences as the rows of one tensor each, which sequences begin at
/// `cu_seqlens_k`, as a cache: a row is where a page may begin, and a sequence has one page of `max_keys`
/// rows, 1 or more. `tensor` has the first key of all, and `values` is the address of its value; both tensors
/// have the same strides. [`DecodeOrder::starts`] must hold the same integers: sequences then end before the
/// tensor does.
///
/// `None` where a stride is no multiple of 16 bytes below 2^36, or `max_keys` is 0.
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

/// Most sequences of a launch: 32 for each word that the schedule has room for.
pub const MAX_SEQUENCES: u32 = 32 * 128;
/// Words that a block's warps leave each other while they look for their item.
pub const TALLY: usize = 32 + MAX_SEQUENCES as usize / 32;
/// Fewest keys of a split, unless a chunk or a number of splits is asked for.
pub const LEAST_KEYS: u32 = 128;

/// How sequences are cut into items, each a split of one sequence's keys for one block of one key head's
/// rows, and which block does which. Every block works that out from the lengths on the device; the host
/// knows bounds only.
///
/// A sequence of `n` keys that some query sees is cut into
/// - `splits` parts, where that is not 0;
/// - one for each `chunk` keys, where that is above 1: then what a sequence's results are depends on nothing
///   but the sequence;
/// - its part of `share`, `share * n / keys of all sequences`, rounded down so that no wave begins that is
///   all but empty; one where that is below `threshold`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOrder {
    /// Keys of each sequence. Where `base` is 0 the host knows them: each of `count` sequences has
    /// `max_keys`.
    pub lengths: Integers,
    /// Where the keys of all sequences are the rows of one tensor ([`varlen_cache`]): sequence `b` has the
    /// rows from number `b` of these to number `b + 1`, and no more keys than `lengths` says. Empty for other
    /// caches.
    pub starts: Integers,
    /// No sequence has more.
    pub max_keys: u32,
    /// Splits of every sequence; 0 where `chunk` or `share` decides.
    pub splits: u32,
    /// Keys of a split; 1 where `share` decides.
    pub chunk: FastDiv,
    /// Key heads.
    pub kv_heads: FastDiv,
    /// Blocks of a key head's rows (queries times the heads that share it).
    pub row_blocks: FastDiv,
    /// Rows of such a block; the last has what is left.
    pub rows: u32,
    /// Splits that sequences are cut into together: about as many as the device holds at once (resident
    /// blocks / key heads and their blocks of rows), more or fewer as the planner says.
    pub share: f32,
    /// Shares below which a sequence is not split.
    pub threshold: f32,
    /// Blocks of the launch. Block `j` does items `j`, `j + blocks`, ..
    pub blocks: u32,
    /// Half of the items that blocks of a wave share evenly: neighbours, which share the port of a pair of
    /// SMs, take items that far apart. Twice of it is at most `blocks`.
    pub spread: u32,
}

/// What a decode kernel, and the kernel that merges its splits, is told. What is needed before the first copy
/// comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeParams {
    /// Which block does which split.
    pub order: DecodeOrder,
    /// Keys and values.
    pub cache: Cache,
    /// Queries `[sequence][head][query][column]`: as many for each sequence.
    pub q: Tensor,
    /// Query heads of a key head.
    pub group: FastDiv,
    /// Query `i` of `n`, on `k` keys, is at `i + k - n + shift`.
    pub window: Window,
    /// `scale * log2(e)`, above 0; with softcap `softcap * log2(e)`.
    pub scale_log2: f32,
    /// `scale / softcap`, or 0: as [`crate::FwdParams::softcap`].
    pub softcap: f32,
    /// What the numbers of keys, and of values, stand for, times this.
    pub scales: [PerHead; 2],
    /// Where splits leave their O, normalised, and its log-sum-exp (base 2): slices are the slots of all
    /// sequences that are split, heads are key heads, rows a key head's. The slices of a row lie one behind
    /// the other.
    pub partials: Partials,
    /// One for each block of rows of each key head of each sequence; none where a second kernel merges.
    pub counters: Counters,
    /// Output, of the queries' shape.
    pub o: Tensor,
    /// Log-sum-exp of each row, natural logarithm.
    pub lse: Lse,
    /// One logit a query head, not scaled, whose weight belongs to no key; base 0 where there are none.
    pub sinks: Lse,
}
