//! Selection for few queries on many keys: of decode kernels, on a KV cache or on tensors, and of MLA decode
//! kernels, on a latent cache. A key ranks the kernels, and a rule gives the reason for the best one.
//! docs/selection.md has the measurements.
use super::pays::{has_measured_splits, of_short_splits};
use super::rule::Case;
use super::{Choice, INVARIANT, Query, refusals, rules, tiles};
use crate::problem::MAX_ROWS;
use crate::request::{Invariance, Splits};
use crate::schedule::{Decode, at_once, most_seen_keys, row_blocks};
use crate::{AttnInfo, Error, MaskKind};
use core::cmp::Reverse;
use spec::{Class, Keys, PageKind};

/// A KV cache with pages of any size.
const ANY_PAGES: Keys = Keys::Cache(PageKind::Rows);

const FEW: &str = "few queries on many keys: decode kernels read keys and values once for all rows of a key \
                   head, and split sequences";
const STATES: &str = "a latent cache, and states over other keys, which no Hopper kernel merges";

/// Bounds for keys and values in tensors: the most queries per sequence, the most rows (queries x query heads
/// per key head) and the fewest keys. Within these bounds, decode kernels are faster than work tiles of
/// queries (H200: 0.13 to 1.00 of their time).
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
pub(super) fn decode(q: &Query<'_>) -> Result<Option<Choice>, Error> {
    let (p, on) = (q.problem, q.on);
    let all: Vec<_> = q.solving(Class::Decode).collect();
    if all.is_empty() {
        return Ok(None);
    }
    if p.cache.is_some() {
        return best_decode(q, &all).map(Some);
    }
    let [queries, rows, keys] = most(p.head_dim);
    // For varlen keys, the mean number of keys decides.
    let mean = p.varlen.map_or(p.seqlen_k, |[_, keys]| keys / p.batch);
    let is_faster = p.seqlen_q <= queries && p.rows() <= rows && mean >= keys;
    if !is_faster && !p.sinks {
        return Ok(None);
    }
    let Some(choice) = best_decode(q, &all).ok().filter(|choice| q.layout.suits(choice.kernel).is_ok())
    else {
        return Ok(None);
    };
    let schedule = Decode::new(p, choice.kernel, on, |bytes| q.scratch.allows(bytes));
    if !schedule.is_ok_and(|schedule| p.sinks || !schedule.lacks_workspace) {
        return Ok(None);
    }
    let fallback = if q.needs_params() { None } else { tiles::portable(q) };
    Ok(Some(Choice { reason: FEW, fallback, ..choice }))
}

/// Returns the kernel with the least key among these that run on the device, or `None` without kernels.
///
/// # Errors
/// Returns the reason why the device does not run the kernel with the least key, if it runs none.
fn least<K: Ord>(
    q: &Query<'_>,
    kernels: impl Iterator<Item = &'static AttnInfo> + Clone,
    key: impl Fn(&AttnInfo) -> K,
) -> Option<Result<&'static AttnInfo, Error>> {
    let of = |e: &&'static AttnInfo| key(e);
    let running = kernels.clone().filter(|e| q.runs(e)).min_by_key(of);
    let kernel = running.or_else(|| kernels.min_by_key(of))?;
    Some(refusals::runs(q, kernel).map(|()| kernel))
}

/// Returns a kernel with the reason that the rules give.
fn explained(q: &Query<'_>, kernel: &'static AttnInfo, all: &[&'static AttnInfo]) -> Choice {
    rules::choose(&Case { q, kernels: &[kernel], all }).unwrap_or(Choice::new(kernel, FEW))
}

/// Returns the best decode kernel. It has the smallest head dim, then the lowest [`cost`], then the fewest
/// rows per thread block. Among these, a kernel for short work comes first (see [`suits_length`]), then a
/// kernel without a window mask if the problem needs none, then a kernel for tiled pages if possible, then
/// the kernel with the most resident blocks per SM.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel runs on this device.
fn best_decode(q: &Query<'_>, all: &[&'static AttnInfo]) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    let size = |e: &AttnInfo| {
        let plain = [e.mask == MaskKind::Local, e.keys == ANY_PAGES];
        (e.head_dim, cost(q, e), e.tile_m, !e.is_for_short_work(), plain, Reverse(at_once(e, p, on)))
    };
    let fitting = all.iter().copied().filter(|e| suits(q, e) && suits_length(q, all, e));
    let none = || {
        let reason = "no decode kernel supports this head_dim, mask and number of rows";
        Err(Error::unsupported(format_args!("decoding {p}"), reason))
    };
    Ok(explained(q, least(q, fitting, size).unwrap_or_else(none)?, all))
}

/// Returns whether the entry fits the number of rows: false if two thread blocks should share its rows,
/// because SMs would idle (H200: 0.73 of the time).
fn suits(q: &Query<'_>, e: &AttnInfo) -> bool {
    let p = q.problem;
    let idle = p.batch * p.heads_k <= q.on.sms as usize;
    e.tile_m <= 16 || !idle
}

/// Returns whether an entry suits the amount of work: true for every entry but those for short work. These
/// suit more work items than other kernels hold at once, of at most this number of keys each (H200: 0.40 to
/// 1.08 of the time). The bound is known at planning: the window, or the longest sequence that the request
/// permits.
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
/// would idle (H200, 2048 to 8192 keys: 0.79 to 1.02 of the time). On more keys, the thread blocks that read
/// the same keys read many bytes of the L2 cache.
fn cost(q: &Query<'_>, e: &AttnInfo) -> u32 {
    let (p, blocks) = (q.problem, row_blocks(e, q.problem));
    let idle = p.batch * p.heads_k * blocks as usize * 4 <= q.on.sms as usize;
    let measured = blocks as usize * p.seqlen_k <= 16384;
    if idle && measured { 1 } else { blocks }
}

/// Returns the best kernel on a latent cache, for its keys or for lists of them. The best portable kernel has
/// the fewest thread blocks, then the fewest rows, then the most stages, except as [`splits_fill`] and
/// [`of_short_splits`] say. Where this is a block of 64 rows, or the rows need more of its blocks than of a
/// Hopper kernel's, the Hopper kernel replaces it if it takes the tensors. (The latter happens with latents
/// of eight bits, of which each portable block converts all keys again.) Batch-invariant problems have none
/// of these exceptions and no fallback. If their bits must not depend on chunks, blocks have the rows of one
/// query.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device.
pub(super) fn latent(q: &Query<'_>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    let of_one_query = p.invariance == Invariance::BatchAndChunks && q.kind.keys == Keys::Latent;
    let all: Vec<_> = q.solving(q.kind.class()).filter(|e| !of_one_query || e.tile_m == 16).collect();
    let blocks_per_sm = |e: &AttnInfo| if splits_fill(q) { on.blocks_per_sm(&e.contract) } else { 0 };
    let size = |e: &AttnInfo| (row_blocks(e, p), e.tile_m, Reverse(blocks_per_sm(e)), Reverse(e.stages));
    let none = || {
        let reason = "no kernel has these numbers of columns";
        Err(Error::unsupported(format_args!("{p} on a latent cache"), reason))
    };
    let portable = || least(q, all.iter().copied().filter(|e| !e.is_hoppers()), size).unwrap_or_else(none);
    let portable = of_short_splits(q, &all).map_or_else(portable, Ok)?;
    let is_as_large =
        |e: &AttnInfo| e.tile_m == portable.tile_m || row_blocks(e, p) < row_blocks(portable, p);
    let replaces = |e: &&AttnInfo| e.is_hoppers() && is_as_large(e) && q.runs(e);
    let Some(hopper) = all.iter().copied().find(replaces) else { return Ok(explained(q, portable, &all)) };
    let takes = if q.merges_states { Err(STATES) } else { q.layout.suits(hopper) };
    Ok(match takes {
        Ok(()) if p.invariance.is_promised() => Choice::new(hopper, INVARIANT),
        Ok(()) => Choice { fallback: hopper.has_maps().then_some(portable), ..explained(q, hopper, &all) },
        Err(reason) => Choice::new(portable, reason),
    })
}

/// Whether each sequence gets at least four shares of the device. The splits are then short, and two thread
/// blocks of an SM hide each other's latency; longer work runs faster in one thread block with more stages
/// (H200, 16 heads: 8 x 32768 keys 94.5 us instead of 116.1, 128 x 1024 keys 63.9 us instead of 59.9). A few
/// sequences are excluded, because twice as many splits cost more to merge than they gain.
fn splits_fill(q: &Query<'_>) -> bool {
    let work = q.problem.batch * q.problem.heads_k;
    has_measured_splits(q) && (8..=q.on.sms as usize / 4).contains(&work)
}
