//! Selection among kernels that divide the queries of each query head into work tiles, on tensors or on a KV
//! cache: a portable kernel, and one of Hopper's kernels if a rule takes it.
use super::rule::Case;
use super::{Choice, Query, attention, fp8, refusals, rules};
use crate::request::Scratch;
use crate::{AttnInfo, DType, Error};
use spec::{Class, Precision, ProblemKind};

const NO_MAPS: &str = "the driver is older than CUDA 12.3, which kernels with tensor maps need";
const EIGHT: &str =
    "an e4m3 KV cache of this head dim, which no Hopper kernel converts: portable work tiles per query head";
const INTEGERS: &str =
    "an int8 KV cache, which Hopper's kernels do not convert: portable work tiles per query head";
const SHORT: &str = "too few queries or keys per sequence, or too few tiles for this device, to pay for a \
                     Hopper kernel: portable work tiles per query head";
/// The reason for a kernel whose output a merge kernel completes.
const MERGED: &str = "no kernel of this head dim, mask and dtype of keys takes sinks: a merge kernel adds \
                      them to the output of a kernel without sinks";

/// The columns of the kernel for head dims 72 and 88 instead of 96, if two warpgroups run. Kernels of head
/// dim 96 copy panels of 32 columns, and TMA is slow if rows begin inside 32-byte sectors. Two panels of 64
/// are faster, although the products have a third more columns (H200, 16 heads of 4096, D = 72: 1.17 times
/// as fast with a full mask, 1.18 times with a causal mask).
const WHOLE_PANELS: [u32; 2] = [128; 2];

/// The columns of the kernel for head dims 72 and 80, which has only tiles of 192 queries: a rule may take a
/// kernel with more columns and 128 queries instead.
const NARROW: [u32; 2] = [80; 2];

/// Returns Hopper's kernel if a rule takes it, otherwise a portable kernel.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device.
pub(super) fn choose(q: &Query<'_>) -> Result<Choice, Error> {
    refusals::has_tile(q)?;
    let all: Vec<_> = solving(q).collect();
    if q.problem.precision == Precision::Fp8 {
        return fp8::choose(q, &best(q, &all, |e| q.runs(e)), &all);
    }
    let fits = portables(q, &all);
    let Some(first) = fits.first() else { return without_portable(q, &all) };
    let hopper = hopper(q, &all, first);
    let scratch = if let Some(Ok(_)) = hopper { Scratch::None } else { q.scratch };
    let portable = rules::choose(&Case { q: &Query { scratch, ..*q }, kernels: &fits, all: &all });
    let Some(portable) = portable else { return Err(refusals::no_tiles(q, &all)) };
    Ok(match hopper.or(q.undivided.map(Err)) {
        Some(Ok(choice)) => Choice { fallback: Some(portable.kernel), ..choice },
        Some(Err(reason)) => Choice { reason, ..portable },
        None => portable,
    })
}

/// Returns the portable kernel that needs no workspace.
pub(super) fn portable(q: &Query<'_>) -> Option<&'static AttnInfo> {
    let all: Vec<_> = solving(q).collect();
    let kernels = &portables(q, &all);
    let case = Case { q: &Query { scratch: Scratch::None, ..*q }, kernels, all: &all };
    rules::choose(&case).map(|choice| choice.kernel)
}

/// Returns the best portable kernels: those that accept the tensors, if there are any.
fn portables(q: &Query<'_>, all: &[&'static AttnInfo]) -> Vec<&'static AttnInfo> {
    let runs = |e: &AttnInfo| !e.has_maps() && q.runs(e);
    let suited = best(q, all, |e| runs(e) && q.layout.suits(e).is_ok());
    if suited.is_empty() { best(q, all, runs) } else { suited }
}

/// Returns the kernels with work tiles that solve the problem. Among kernels with parameters, only kernels of
/// two widths take different numbers of columns: the table has a portable kernel beside each of them.
fn solving(q: &Query<'_>) -> impl Iterator<Item = &'static AttnInfo> {
    let both = |e: &AttnInfo| !q.is_special(e) || q.kind.has_equal_rows() || e.head_dim != e.head_dim_v;
    q.solving(q.kind.class()).filter(move |e| both(e))
}

/// Returns the kernels with the fewest columns, and among these the kernels with the problem's mask, or else
/// with a more general one.
fn best(
    q: &Query<'_>,
    all: &[&'static AttnInfo],
    takes: impl Fn(&AttnInfo) -> bool,
) -> Vec<&'static AttnInfo> {
    let rank = |e: &AttnInfo| (e.columns(), e.mask != q.kind.mask);
    let taken = || all.iter().copied().filter(|e| takes(e));
    let least = taken().map(rank).min();
    taken().filter(|e| Some(rank(e)) == least).collect()
}

/// Returns the answer for Hopper's kernels: a kernel, or the reason why the portable kernel runs although
/// there is one. If the portable kernel has fewer columns of K, Hopper's kernels would compute more.
fn hopper(
    q: &Query<'_>,
    all: &[&'static AttnInfo],
    portable: &AttnInfo,
) -> Option<Result<Choice, &'static str>> {
    let fits = |e: &AttnInfo| e.has_maps() && q.fits(e);
    let able = |e: &AttnInfo| fits(e) && e.head_dim <= portable.head_dim;
    let writes = |e: &AttnInfo| able(e) && q.layout.rows.are_of(e).is_ok();
    let mut kernels = best(q, all, writes);
    if kernels.is_empty() {
        kernels = best(q, all, able);
    }
    let plain_cache = q.kind.class() == Class::Paged && !q.needs_params();
    let Some(&first) = kernels.first() else {
        // Slopes alone do not make the reason.
        let flat = ProblemKind { slopes: false, ..q.kind };
        let converts = |e: &AttnInfo| able(e) && e.solves(&flat);
        let none = plain_cache && q.on.arch() == 90 && portable.kv_dtype != portable.dtype;
        let refusal = if portable.kv_dtype == DType::Int8 { INTEGERS } else { EIGHT };
        return (none && !q.class(Class::Paged).any(converts)).then_some(Err(refusal));
    };
    if first.columns() == NARROW {
        kernels.extend(best(q, all, |e| able(e) && e.columns() > NARROW));
    }
    let within_sectors = matches!(first.columns()[0], 80 | 96) && !q.problem.head_dim.is_multiple_of(16);
    if within_sectors && !q.is_special(first) {
        let mask = first.mask;
        kernels.retain(|e| e.tile_m == 192);
        kernels.extend(all.iter().filter(|e| fits(e) && e.columns() == WHOLE_PANELS && e.mask == mask));
    }
    let Some(choice) = rules::choose(&Case { q, kernels: &kernels, all }) else {
        return plain_cache.then_some(Err(SHORT));
    };
    Some(match q.layout.suits(choice.kernel) {
        _ if !q.on.tensor_maps => Err(NO_MAPS),
        Ok(()) => Ok(choice),
        Err(reason) => Err(reason),
    })
}

/// Returns the kernel for a problem that no portable kernel solves on this device: one of Hopper's kernels of
/// a variant, or a kernel without sinks, to whose output a merge kernel adds them.
///
/// # Errors
/// Returns [`Error::Unsupported`], which says what no kernel solves.
fn without_portable(q: &Query<'_>, all: &[&'static AttnInfo]) -> Result<Choice, Error> {
    let (p, own) = (q.problem, q.problem.variant);
    if !all.iter().any(|e| q.runs(e)) && p.sinks && !own.is_some_and(|variant| variant.scores().sink) {
        // If no kernel has this mask even without sinks, the error names the mask.
        let choice = attention(&q.of(&p.sinks(false), Scratch::None), None)?;
        refusals::takes_merge(p)?;
        return Ok(Choice { reason: MERGED, ..choice });
    }
    let kernels = best(q, all, |e| own.is_some() && q.runs(e));
    let case = Case { q, kernels: &kernels, all };
    let long = if kernels.len() == 1 { None } else { rules::choose(&case) };
    let short = || rules::smallest(&case);
    let Some(choice) = long.or_else(short) else { return Err(refusals::no_tiles(q, all)) };
    q.layout
        .suits(choice.kernel)
        .map_err(|reason| Error::unsupported(choice.kernel.contract.symbol, reason))?;
    Ok(choice)
}
