//! Selection on a KV cache. If a sequence has at most [`MAX_ROWS`] rows (queries x query heads) per key head,
//! and a decode kernel takes the problem, this kernel runs: its thread blocks read each key once for all of
//! their rows. Otherwise a kernel runs that divides the queries of each query head into work tiles.
use super::hopper::Answer;
use super::varlen::{self, Least};
use super::{ASKED, Choice, Query, apart, decode, mixed, mla, needs_no_splits, reads_cache, variant};
use crate::problem::MAX_ROWS;
use crate::request::Splits;
use crate::{AttnInfo, DType, Error, MaskKind, kernels};
use spec::{HOPPERS_PAGED, PAGED, ScoreKinds};

const HOPPER: &str = "warpgroups and TMA on pages; sequences are long enough and fill the device";
const CHUNKED: &str = "batch-invariant splits (`Splits::Chunk`): one kernel for all batches";
const SLOPES: &str = "ALiBi slopes, which decode kernels lack: work tiles per query head";
const EIGHT: &str =
    "an e4m3 KV cache of this head dim, which no Hopper kernel converts: portable work tiles per query head";
const INTEGERS: &str =
    "an int8 KV cache, which Hopper's kernels do not convert: portable work tiles per query head";
const APART: &str = "keys and values of different numbers of columns or different strides, which decode \
                     kernels lack: work tiles per query head";
const MANY: &str = "more than 64 rows per key head: work tiles per query head";

/// Returns the named kernel, or the planner's choice.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or [`Error::Invalid`] if
/// the named kernel does not solve it.
pub(super) fn choose(q: &Query<'_>, config: Option<&str>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    if p.latent().is_some() {
        return mla::choose(q, config);
    }
    let paged = |name: &str| match p.variant {
        Some(variant) => variant::by_name(variant, p, name).ok(),
        None => kernels::paged().find(|entry| entry.contract.symbol == name),
    };
    let named = config.and_then(paged);
    if named.is_none() && decode::takes(p) {
        return decode::choose(p, on, config);
    }
    needs_no_splits(p)?;
    if config.is_none() && variant::is_needed(p) {
        return variant::choose(q);
    }
    let cache_dtype = p.cache.map_or(p.dtype, |cache| cache.dtype);
    let solves = |e: &&AttnInfo| {
        // Above head dim 256, page lookups leave no register for slopes.
        [e.dtype, e.kv_dtype] == [p.dtype, cache_dtype]
            && (e.head_dim <= 256 && !e.has_maps() || !p.alibi)
            && p.has_columns_for(e)
            && variant::covers(e.mask, p.mask_kind(), true)
    };
    if let Some(name) = config {
        let scores = p.score_kinds();
        let merges = scores.sink && named.is_some_and(|entry| !entry.scores.sink);
        let scores = ScoreKinds { sink: scores.sink && !merges, ..scores };
        let solves = |e: &&AttnInfo| solves(e) && e.scores == scores;
        named.map_or(Ok(()), |entry| reads_cache(entry, p))?;
        let entry = named.filter(solves).ok_or_else(|| {
            let rows = match p.rows() {
                rows if rows > MAX_ROWS => {
                    format!(" and {rows} rows per key head, more than decode kernels hold ({MAX_ROWS})")
                }
                _ => String::new(),
            };
            let expected = format_args!(
                "it must be a kernel for {} on a cache of {}, {} and this mask{rows}: `ferroflash kernels \
                 --family paged`",
                p.dtype.name(),
                cache_dtype.name(),
                p.named_columns()
            );
            Error::invalid("config", name, expected)
        })?;
        if merges {
            variant::takes_merge(p)?;
        }
        return on.runs(&entry.contract).and(Ok(Choice::new(entry, ASKED)));
    }
    // Each head dim and mask has one portable kernel. On e4m3 KV caches it has two, and the first one needs a
    // card that converts e4m3.
    let size = |e: &&AttnInfo| (e.head_dim, e.mask == MaskKind::Local);
    let (solving, runs) = (PAGED.iter().filter(solves), |e: &&AttnInfo| on.runs(&e.contract).is_ok());
    let portable = solving.clone().filter(runs).min_by_key(size).or_else(|| solving.min_by_key(size));
    let portable = portable.ok_or_else(|| {
        let kernels = || PAGED.iter().filter(|e| [e.dtype, e.kv_dtype] == [p.dtype, cache_dtype]);
        if !kernels().any(|e| p.has_columns_for(e)) && !p.has_equal_rows() {
            return apart(p, kernels());
        }
        let feature = format_args!("{p} on a cache of {}", cache_dtype.name());
        let reason = match cache_dtype {
            DType::E4m3 => {
                "e4m3 KV caches support head_dim up to 256; above, at most 64 rows (queries x query heads \
                 per key head), equal query counts per sequence, and no ALiBi slopes"
            }
            DType::Int8 => "int8 KV caches support head_dim up to 256; use a 16-bit cache",
            _ => "ALiBi slopes on a KV cache support head_dim up to 256",
        };
        Error::unsupported(feature, reason)
    })?;
    on.runs(&portable.contract)?;
    let reason = match mixed::obstacle(q) {
        Some(reason) => reason,
        None if p.alibi => SLOPES,
        None if p.rows() <= MAX_ROWS => APART,
        None => MANY,
    };
    Ok(match hopper(q, portable) {
        Answer::Taken(kernel, reason) => Choice { fallback: Some(portable), ..Choice::new(kernel, reason) },
        Answer::Refused(reason) | Answer::Slower(reason) => Choice::new(portable, reason),
        Answer::Portable => Choice::new(portable, reason),
    })
}

/// Returns the mean queries and keys from which Hopper's paged kernel is faster. The host often knows only
/// the maximum number of keys. Speed relative to the portable work tile (H200, f16, causal, pages of 16),
/// with equal numbers of queries and keys unless the table says more:
///
/// | head dim | keys | speed |
/// |---|---|---|
/// | 128 | 128 | 1.15 |
/// | 128 | 256 | 1.43 |
/// | 128 | 128 single queries beside a prompt of 1536 | 1.91 |
/// | 64 | 256 | 0.96 and 1.01 |
/// | 64 | 384 | 1.05 |
///
/// Windows of shorter sequences were not measured.
const fn least(mask: MaskKind, head_dim: u32) -> Least {
    match (mask, head_dim) {
        (MaskKind::Local, _) => &[[128, 512]],
        (_, 128) => &[[1, 128]],
        _ => &[[128, 384]],
    }
}

/// Returns whether one of Hopper's kernels solves a problem that `portable` solves.
fn hopper(q: &Query<'_>, portable: &AttnInfo) -> Answer {
    let (p, on) = (q.problem, q.on);
    let entry = varlen::hoppers(p, portable.mask, HOPPERS_PAGED, portable, on);
    if entry.is_none() && portable.kv_dtype != portable.dtype && on.arch() == 90 {
        let is_int8 = portable.kv_dtype == DType::Int8;
        return Answer::Refused(if is_int8 { INTEGERS } else { EIGHT });
    }
    let least = least(portable.mask, entry.map_or(0, |entry| entry.head_dim));
    varlen::answer(entry, least, p, on, |entry| match p.splits {
        Splits::Chunk(_) => Err(CHUNKED),
        _ => q.takes(entry).and(Ok(HOPPER)),
    })
}
