//! Selection of decode kernels: few queries on many keys, in a KV cache or in tensors.
use super::rule::Case;
use super::{Choice, Query, rules, tiles};
use crate::problem::MAX_ROWS;
use crate::request::Splits;
use crate::schedule::{Decode, at_once, most_seen_keys, row_blocks};
use crate::{AttnInfo, Error, MaskKind};
use core::cmp::Reverse;
use spec::{Class, Keys, PageKind};

/// A KV cache with pages of any size.
const ANY_PAGES: Keys = Keys::Cache(PageKind::Rows);

const FEW: &str = "few queries on many keys: decode kernels read keys and values once for all rows of a key \
                   head, and split sequences";

/// Bounds for keys and values in tensors: the most queries per sequence, the most rows (queries x query heads
/// per key head) and the fewest keys. Within these bounds, decode kernels are faster than work tiles of
/// queries.
///
/// Time of decode kernels relative to that of work tiles (H200, bf16, L2 cold, 1 to 64 sequences of up to
/// 4096 keys):
///
/// | head dim | heads | queries | from this number of keys on | below |
/// |---|---|---|---|---|
/// | 64 | 16/2 | 1, 4 | 1024: 0.13 to 0.86 | 0.30 to 1.27 |
/// | 64 | 32/32 | 1, 4 | 1024: 0.70 to 0.96 | 1.05 to 1.19 |
/// | 64 | 32/32 | 16 | 1024: 0.73 to 1.09 | 1.14 to 1.41 |
/// | 128 | 32/8, 64/8 | 1 to 16 | 512: 0.21 to 0.89 | 0.17 to 1.21 |
/// | 128 | 32/32 | 1 to 16 | 512: 0.67 to 1.00 | 0.76 to 1.17 |
/// | 128 | 32/32 | 64 | 512: 0.69 to 1.64 | 0.98 to 1.81 |
/// | 256 | 16/16 | 1, 4 | 512: 0.23 to 0.93 | 0.63 to 0.92 |
/// | 256 | 16/16 | 16 | 512: 0.27 to 1.31 | 0.70 to 1.55 |
const fn most(head_dim: usize) -> [usize; 3] {
    match head_dim {
        0..=64 => [4, MAX_ROWS, 1024],
        65..=128 => [16, MAX_ROWS, 512],
        _ => [4, 8, 512],
    }
}

/// Returns the decode kernel: on a KV cache, if one solves the problem; on tensors, if it is also faster, or
/// the request has sinks. Without a workspace, other kernels are faster on tensors, unless there are enough
/// sequences to fill the device unsplit.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no decode kernel runs on this device.
pub(super) fn choose(q: &Query<'_>) -> Result<Option<Choice>, Error> {
    let (p, on) = (q.problem, q.on);
    let all: Vec<_> = q.solving(Class::Decode).collect();
    if all.is_empty() {
        return Ok(None);
    }
    if p.cache.is_some() {
        return best(q, &all).map(Some);
    }
    let [queries, rows, keys] = most(p.head_dim);
    // For varlen keys, the mean number of keys decides.
    let mean = p.varlen.map_or(p.seqlen_k, |[_, keys]| keys / p.batch);
    let is_faster = p.seqlen_q <= queries && p.rows() <= rows && mean >= keys;
    if !is_faster && !p.sinks {
        return Ok(None);
    }
    let Some(choice) = best(q, &all).ok().filter(|choice| q.layout.suits(choice.kernel).is_ok()) else {
        return Ok(None);
    };
    let schedule = Decode::new(p, choice.kernel, on, |bytes| q.scratch.allows(bytes));
    if !schedule.is_ok_and(|schedule| p.sinks || !schedule.lacks_workspace) {
        return Ok(None);
    }
    let fallback = if q.needs_params() { None } else { tiles::portable(q) };
    Ok(Some(Choice { reason: FEW, fallback, ..choice }))
}

/// Returns the best kernel. The best kernel has the smallest head dim, then the lowest [`cost`], then the
/// fewest rows per thread block. Among these, a kernel for short work comes first (see [`suits_length`]),
/// then a kernel without a window mask if the problem needs none, then a kernel for tiled pages if possible,
/// then the kernel with the most resident blocks per SM.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel runs on this device.
fn best(q: &Query<'_>, all: &[&'static AttnInfo]) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    let size = |e: &&AttnInfo| {
        let plain = [e.mask == MaskKind::Local, e.keys == ANY_PAGES];
        let ordinary = !e.is_for_short_work();
        (e.head_dim, cost(q, e), e.tile_m, ordinary, plain, Reverse(at_once(e, p, on)))
    };
    let fitting = all.iter().copied().filter(|e| keeps_bits(q, e) && suits(q, e) && suits_length(q, all, e));
    let runs = |e: &&AttnInfo| q.runs(e);
    let Some(entry) = fitting.clone().filter(runs).min_by_key(size).or_else(|| fitting.min_by_key(size))
    else {
        let reason = "no decode kernel supports this head_dim, mask and number of rows";
        return Err(Error::unsupported(format_args!("decoding {p}"), reason));
    };
    on.runs(&entry.contract)?;
    let choice = rules::choose(&Case { q, kernels: &[entry], all });
    Ok(choice.unwrap_or(Choice::new(entry, FEW)))
}

/// Returns whether the kernel is batch-invariant for this problem. The kernel's warps must split keys like
/// the warps of a kernel for any pages, so that pages do not matter.
fn keeps_bits(q: &Query<'_>, e: &AttnInfo) -> bool {
    let kind = |e: &AttnInfo| ([e.dtype, e.kv_dtype], e.head_dim, e.tile_m, e.warps());
    let takes_any = |other: &AttnInfo| {
        other.keys == ANY_PAGES && kind(other) == kind(e) && !other.is_for_short_work() && q.runs(other)
    };
    !matches!(q.problem.splits, Splits::Chunk(_)) || q.class(Class::Decode).any(takes_any)
}

/// Returns whether the entry fits the number of rows: false if two thread blocks should share its rows. With
/// 8 key heads of 32 rows (H200), one block of 32 rows is compared with two blocks of 16:
///
/// | sequences | one block | two blocks |
/// |---|---|---|
/// | 16 of 8192 keys | 170 us | 124 us |
/// | 32 of 1024 keys | 37 us | 40 us |
///
/// Chunks do not depend on the batch, so they ignore this rule.
fn suits(q: &Query<'_>, e: &AttnInfo) -> bool {
    let p = q.problem;
    let idle = p.batch * p.heads_k <= q.on.sms as usize;
    e.tile_m <= 16 || !idle || matches!(p.splits, Splits::Chunk(_))
}

/// Returns whether an entry suits the amount of work: true for every entry but those for short work. These
/// suit more work items than other kernels hold at once, of at most this number of keys each. The bound is
/// known at planning: the window, or the longest sequence that the request permits. Chunks do not depend on
/// the batch, so they ignore such entries. Times in us (H200, f16, 32 KiB instead of 96 KiB per block):
///
/// | head dim, heads | work | other kernels | kernels for short work |
/// |---|---|---|---|
/// | 64, 64/8 | 64, 256 sequences, window of 128 | 21.8, 84.7 | 11.4, 33.6 |
/// | 64, 64/8 | 64, 256 sequences, window of 1024 | 53.0, 184 | 37.7, 135 |
/// | 64, 64/8 | 64 of 512, 2048, 8192 keys | 30.6, 73.6, 246 | 22.3, 67.8, 243 |
/// | 64, 64/8 | 64 of 64 to 2048 keys | 43.5 | 47.0 |
/// | 64, 32/32 | 16, 128 of 128, 512 keys | 14.7, 186 | 8.8, 126 |
/// | 128, 32/8 | 64, 256 of 64 keys | 12.6, 43.7 | 10.3, 29.3 |
/// | 128, 32/8 | 64, 256 of 256 keys | 23.3, 76.4 | 21.7, 72.0 |
/// | 128, 32/8 | 24 of 256 keys (fewer work items) | 10.0 | 11.7 |
fn suits_length(q: &Query<'_>, all: &[&'static AttnInfo], e: &AttnInfo) -> bool {
    let (p, on) = (q.problem, q.on);
    let longest = if e.head_dim == 64 { 1024 + 16 } else { 320 + 16 };
    let ordinary = |o: &&&AttnInfo| !o.is_for_short_work() && o.head_dim == e.head_dim;
    let per_sm = || all.iter().filter(ordinary).map(|o| on.blocks_per_sm(&o.contract)).max().unwrap_or(0);
    let items = p.batch * p.heads_k * row_blocks(e, p) as usize;
    !e.is_for_short_work()
        || p.splits == Splits::Auto && most_seen_keys(p) <= longest && items > (per_sm() * on.sms) as usize
}

/// Returns the cost of an entry: the number of thread blocks that share a key head's rows. If each sequence
/// can still have four splits, the number counts as one: more rows mean more work after each copy, and SMs
/// would idle. On more keys, the thread blocks that read the same keys read many bytes of the L2 cache.
/// Chunks do not depend on the batch, so they ignore this rule. Times in us (H200, 8 key heads, 4 query heads
/// per key head):
///
/// | queries | sequences x keys | larger blocks | smaller blocks |
/// |---|---|---|---|
/// | 4 | 1 x 2048, 4096, 8192 | 9.1, 10.7, 14.4 (one of 16 rows) | 7.2, 9.0, 12.8 (two of 8) |
/// | 4 | 2 x 4096 | 14.2 | 12.7 |
/// | 4 | 4 x 4096 | 22.4 | 23.5 |
/// | 8 | 1 x 2048, 4096, 8192 | 8.9, 10.6, 14.4 (two of 16 rows) | 7.7, 10.0, 14.7 (four of 8) |
/// | 8 | 2 x 4096 | 14.3 | 20.7 |
fn cost(q: &Query<'_>, e: &AttnInfo) -> u32 {
    let (p, blocks) = (q.problem, row_blocks(e, q.problem));
    let idle = p.batch * p.heads_k * blocks as usize * 4 <= q.on.sms as usize;
    let measured = blocks as usize * p.seqlen_k <= 16384;
    if idle && measured && !matches!(p.splits, Splits::Chunk(_)) { 1 } else { blocks }
}
