//! Selection among kernels with sinks, with a bias, or with a mask that has parameters, and among the kernels
//! of a caller's variant. Each combination of mask and scores has few kernels, so one rule serves all
//! combinations.
use super::hopper::NO_MAPS;
use super::{Choice, Query, attention, hopper_variant, portable, tiles};
use crate::request::Scratch;
use crate::variant::AnyVariant;
use crate::{AttnInfo, Contract, Error, MaskKind, Problem};
use spec::{Keys, Queries, ScoreKinds};

const LARGE: &str = "the largest tile with this mask and these scores: there are enough queries to fill the \
                     device";
const SMALL: &str = "few queries for this device: the smallest tile with this mask and these scores";
const ONLY: &str = "the only kernel with this mask and these scores that fits the device";
const LISTS: &str = "the variant's kernel with the tile of the block mask's lists";
/// The reason for a kernel whose output a merge kernel completes.
const MERGED: &str = "no kernel of this head dim, mask and dtype of keys takes sinks: a merge kernel adds \
                      them to the output of a kernel without sinks";

/// Returns whether a kernel of mask kind `kernel` solves a problem of mask kind `asked`. Windows describe
/// full and causal masks too. On a KV cache, causal kernels also run full masks.
pub(super) fn covers(kernel: MaskKind, asked: MaskKind, on_cache: bool) -> bool {
    match (kernel, asked) {
        (MaskKind::Local, MaskKind::Full | MaskKind::Causal) => true,
        (MaskKind::Causal, MaskKind::Full) => on_cache,
        _ => kernel == asked,
    }
}

/// Returns whether only kernels of this file solve a problem.
pub(super) fn is_needed(p: &Problem) -> bool {
    let plain = matches!(p.mask_kind(), MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    !plain || p.score_kinds() != ScoreKinds::NONE || p.variant.is_some()
}

/// Returns the list of kernels that may solve a problem alone: the kernels of its variant, or of the table
/// without the kernels of mixed batches. With a block mask, these are the kernels with the tile of its lists.
pub(super) fn kernels(p: &Problem) -> impl Iterator<Item = &'static AttnInfo> + Clone {
    kernels_or(p, spec::attention().filter(|e| e.queries != Queries::Mixed))
}

/// Like [`kernels`], for a part of the table.
pub(super) fn kernels_or(
    p: &Problem,
    part: impl Iterator<Item = &'static AttnInfo> + Clone,
) -> impl Iterator<Item = &'static AttnInfo> + Clone {
    let table = p.variant.is_none().then_some(part);
    let all = p.variant.into_iter().flat_map(AnyVariant::kernels).chain(table.into_iter().flatten());
    all.filter(move |e| p.block_tile.is_none_or(|tile| tile == [e.tile_m, e.tile_n]))
}

/// Returns whether a kernel takes the columns. Only kernels of two widths take different numbers: the lists
/// have a portable kernel beside each of them.
fn has_columns(e: &AttnInfo, p: &Problem) -> bool {
    p.has_columns_for(e) && (p.has_equal_rows() || e.head_dim != e.head_dim_v)
}

/// Checks that a kernel of the variant has the tile of the block mask.
///
/// # Errors
/// Returns [`Error::Invalid`], which lists the tiles of the variant's kernels.
fn has_tile(p: &Problem) -> Result<(), Error> {
    let (Some(variant), Some([m, n])) = (p.variant, p.block_tile) else { return Ok(()) };
    let of_front = || variant.kernels().filter(|e| is_of_front(e, p) && has_columns(e, p));
    if of_front().next().is_none() || of_front().any(|e| [e.tile_m, e.tile_n] == [m, n]) {
        return Ok(());
    }
    let tiles: Vec<_> = of_front().map(|e| format!("{} x {}", e.tile_m, e.tile_n)).collect();
    let expected = format_args!(
        "kernels of variant {} for {}, {} and this head_dim have tiles of {} queries and keys; make the \
         lists for one of these",
        variant.name(),
        p.dtype.name(),
        front(p),
        tiles.join(", ")
    );
    Err(Error::invalid("block_mask.tile", format_args!("{m} x {n}"), expected))
}

/// Returns the kernel of a variant with this symbol, for the request's kind of tensors.
///
/// # Errors
/// Returns [`Error::Invalid`], which lists the kernels that the name could be.
pub(super) fn by_name(variant: AnyVariant, p: &Problem, name: &str) -> Result<&'static AttnInfo, Error> {
    let of_front = || variant.kernels().filter(|e| is_of_front(e, p));
    of_front().find(|e| e.contract.symbol == name).ok_or_else(|| {
        let symbols: Vec<_> = of_front().map(|e| e.contract.symbol).collect();
        let expected = format_args!(
            "it must be a kernel of variant {} for {} and {}: one of [{}]",
            variant.name(),
            p.dtype.name(),
            front(p),
            symbols.join(", ")
        );
        Error::invalid("config", name, expected)
    })
}

/// Checks that kernels with the request's mask take its softcap and slopes.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names the mask and the scores.
pub(super) fn goes_together(p: &Problem) -> Result<(), Error> {
    let kind = p.mask_kind();
    let scores = [("softcap", p.softcap.is_some()), ("ALiBi slopes", p.alibi)];
    let both = scores.into_iter().find(|(_, is_there)| *is_there);
    match both.filter(|_| matches!(kind, MaskKind::Prefix | MaskKind::Chunked | MaskKind::Bits)) {
        None => Ok(()),
        Some((scores, _)) => {
            let reason = format_args!(
                "kernels with mask {} take neither softcap nor slopes; use a full mask, a causal mask or a \
                 window",
                kind.name()
            );
            Err(Error::unsupported(format_args!("{scores} with mask {}", p.mask), reason))
        }
    }
}

/// Returns whether a kernel runs on the request's kind of tensors, with work tiles.
fn is_of_front(e: &AttnInfo, p: &Problem) -> bool {
    let keys = match e.keys {
        Keys::Batched => p.cache.is_none() && p.varlen.is_none(),
        Keys::Varlen => p.cache.is_none() && p.varlen.is_some(),
        Keys::Cache(_) => p.cache.is_some() && p.latent().is_none(),
        Keys::Latent => p.latent().is_some(),
    };
    let kv_dtype = p.cache.map_or(p.dtype, |cache| cache.dtype);
    keys && [e.dtype, e.kv_dtype] == [p.dtype, kv_dtype] && !e.decodes()
}

/// Returns the request's kind of tensors, in words.
const fn front(p: &Problem) -> &'static str {
    match (p.varlen, p.cache) {
        (_, Some(_)) => "keys on a KV cache",
        (Some(_), None) => "varlen tensors",
        (None, None) => "dense tensors",
    }
}

/// Returns whether a kernel has the problem's mask and scores.
fn is_meant(e: &AttnInfo, p: &Problem) -> bool {
    // Above head dim 256, page lookups leave no register for slopes.
    let slopes = !p.alibi || !e.has_maps() && (p.cache.is_none() || e.head_dim <= 256);
    covers(e.mask, p.mask_kind(), p.cache.is_some()) && e.scores == p.score_kinds() && slopes
}

/// Returns the kernel with the problem's mask and scores. If no such kernel takes sinks, returns a kernel
/// without sinks, and a merge kernel then adds the sinks.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names a combination that no kernel solves.
pub(super) fn choose(q: &Query<'_>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    has_tile(p)?;
    let solves = |e: &&AttnInfo| is_of_front(e, p) && is_meant(e, p) && has_columns(e, p);
    let (split, solving): (Vec<_>, Vec<_>) = kernels(p).filter(solves).partition(|e| e.splits);
    let runs = |e: &&&AttnInfo| !e.has_maps() && on.runs(&e.contract).is_ok();
    // The kernel with the fewest columns comes first, then the kernel with this mask before a more general
    // one.
    let rank = |e: &AttnInfo| (e.columns(), e.mask != p.mask_kind());
    let Some(best) = solving.iter().filter(runs).map(|e| rank(e)).min() else {
        let on_device = solving.iter().copied().filter(|e| on.runs(&e.contract).is_ok());
        let portable = || solving.iter().copied().find(|e| !e.has_maps());
        let best = on_device.clone().min_by_key(|e| rank(e));
        return match best.or_else(portable).or(solving.first().copied()) {
            None if p.sinks && !p.variant.is_some_and(|variant| variant.scores().sink) => merged(q),
            Some(kernel) if p.variant.is_some() && on.runs(&kernel.contract).is_ok() => {
                let hoppers = || on_device.clone().filter(|e| rank(e) == rank(kernel));
                let long = hopper_variant::choose(q, &hoppers().collect::<Vec<_>>());
                let short = hoppers().min_by_key(|e| (e.tile_m, e.tile_n)).unwrap_or(kernel);
                let (kernel, reason) = long.unwrap_or((short, SMALL));
                q.takes(kernel).map_err(|reason| Error::unsupported(kernel.contract.symbol, reason))?;
                Ok(Choice::new(kernel, if hoppers().count() == 1 { only(p) } else { reason }))
            }
            Some(kernel) => Err(on.runs(&kernel.contract).err().unwrap_or_else(|| none(p))),
            None => Err(none(p)),
        };
    };
    let fitting = || solving.iter().copied().filter(|e| runs(&e) && rank(e) == best);
    let sms = u64::from(on.sms);
    let fills = |e: &&AttnInfo| tiles(p, e) >= sms * u64::from(on.blocks_per_sm(&e.contract));
    let size = |e: &&AttnInfo| (e.tile_m, e.tile_n);
    let (large, small) = (fitting().filter(fills).max_by_key(size), fitting().min_by_key(size));
    let Some(portable) = large.or(small) else { return Err(none(p)) };
    let reason = match (fitting().nth(1), large) {
        (None, _) => only(p),
        (Some(_), Some(_)) => LARGE,
        (Some(_), None) => SMALL,
    };
    // If a variant has a tile of the table, the table's lines also decide about this tile.
    let line = (p.variant.is_some() && p.varlen.is_none() && p.cache.is_none()).then(|| {
        let split = split.iter().copied().filter(|e| runs(&e) && rank(e) == best);
        portable::by_table(p, on, q.scratch, best.0, fitting().chain(split).filter(is_tile_of_table))
    });
    let Choice { kernel: portable, reason, .. } = line.flatten().unwrap_or(Choice::new(portable, reason));
    let of_columns: Vec<_> = solving.iter().copied().filter(|e| e.columns() == best.0).collect();
    let Some((kernel, fast)) = hopper_variant::choose(q, &of_columns) else {
        return Ok(Choice::new(portable, reason));
    };
    Ok(match q.takes(kernel) {
        _ if !on.tensor_maps => Choice::new(portable, NO_MAPS),
        Ok(()) => Choice { fallback: large.or(small), ..Choice::new(kernel, fast) },
        Err(reason) => Choice::new(portable, reason),
    })
}

/// Returns the reason for the only kernel that solves a problem.
const fn only(p: &Problem) -> &'static str {
    if p.block_tile.is_some() { LISTS } else { ONLY }
}

/// Returns whether a kernel of the table has this kernel's tile and schedule.
fn is_tile_of_table(e: &&'static AttnInfo) -> bool {
    let tile = |e: &AttnInfo| (e.columns(), [e.tile_m, e.tile_n, e.stages], e.schedule, e.splits);
    spec::PLANNED.iter().any(|of_table| tile(of_table) == tile(e))
}

/// Returns a kernel without sinks, for a launch whose merge kernel adds the sinks.
///
/// # Errors
/// Returns [`Error::Unsupported`] for varlen sequences, because a merge would write their padding rows, and
/// the errors of the problem without sinks.
fn merged(q: &Query<'_>) -> Result<Choice, Error> {
    let p = q.problem;
    let problem = &p.sinks(false);
    // If no kernel has this mask even without sinks, the error names the mask.
    let choice = attention(&Query { problem, scratch: Scratch::None, ..*q }, None)?;
    takes_merge(p)?;
    Ok(Choice { reason: MERGED, ..choice })
}

/// Checks that a merge kernel may add a problem's sinks.
///
/// # Errors
/// Returns [`Error::Unsupported`] for varlen sequences, because a merge would write their padding rows.
pub(super) fn takes_merge(p: &Problem) -> Result<(), Error> {
    if p.varlen.is_none() {
        return Ok(());
    }
    let reason = "no kernel for varlen sequences of this head dim, mask and dtype of keys takes sinks, and \
                  a merge kernel would write padding rows; with head dims up to 128, use keys in the \
                  queries' dtype; or ask for the LSE, fill it with -inf before the launch, and add the \
                  sinks with `Merge`";
    Err(Error::unsupported(format_args!("attention sinks for {p}"), reason))
}

/// The masks and scores of a kernel of windows.
const ANY_WINDOW: &str = "full and causal masks, windows and softcap";

/// Returns a kernel's masks and scores in words.
fn in_words(e: &AttnInfo) -> String {
    let masks = match e.mask {
        MaskKind::Full => "full masks",
        MaskKind::Causal => "causal masks",
        MaskKind::Local => ANY_WINDOW,
        MaskKind::Prefix => "prefix masks",
        MaskKind::Chunked => "chunked masks",
        MaskKind::Bits => "masks of bits",
        MaskKind::Own => "a caller's masks",
    };
    let bias = e.scores.bias.map(|dtype| format!("a bias of {}", dtype.name()));
    let own = |is_there: bool, what: &str| is_there.then(|| what.to_owned());
    let scores = [own(e.scores.sink, "sinks"), own(e.scores.alibi, "ALiBi slopes"), bias];
    let scores: Vec<_> = scores.into_iter().flatten().collect();
    if scores.is_empty() { masks.to_owned() } else { format!("{masks} with {}", scores.join(" and ")) }
}

/// Returns the error for a combination of mask and scores that no kernel solves.
fn none(p: &Problem) -> Error {
    if let Some(variant) = p.variant {
        let has = |e: &AttnInfo| {
            let Contract { symbol, .. } = e.contract;
            format!("{symbol} ({}, {}, head_dim {})", e.family(), e.dtype.name(), e.head_dim)
        };
        let kernels: Vec<_> = variant.kernels().map(has).collect();
        let reason = format_args!(
            "variant {} has no kernel for {}, {} and this head_dim; it has {}; compile one more (`entry!`)",
            variant.name(),
            p.dtype.name(),
            front(p),
            kernels.join(", ")
        );
        return Error::unsupported(p, reason);
    }
    let of_front = || spec::attention().filter(|e| is_of_front(e, p));
    let largest = of_front().filter(|e| is_meant(e, p)).map(|e| e.head_dim).max();
    if !p.has_equal_rows() {
        let reason = "kernels with this mask and these scores take k and v of equal numbers of columns, and \
                      equal strides in a KV cache";
        return Error::unsupported(p, reason);
    }
    if let Some(largest) = largest {
        let reason = format_args!("kernels with this mask and these scores take head dims up to {largest}");
        return Error::unsupported(p, reason);
    }
    let mut kinds: Vec<_> = of_front().map(in_words).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.iter().any(|kind| kind == ANY_WINDOW) {
        kinds.retain(|kind| !["full masks", "causal masks"].contains(&kind.as_str()));
    }
    let dtype = p.dtype.name();
    let keys = match p.cache {
        Some(cache) => format!("on a KV cache of {}", cache.dtype.name()),
        None => "in tensors".to_owned(),
    };
    let store = match p.cache {
        // No kernel on a KV cache takes a bias.
        Some(cache) if cache.dtype != p.dtype && p.bias.is_none() => {
            format!("store the cache in {dtype}, or ")
        }
        _ => String::new(),
    };
    let (fault, remedy) = match p.bias {
        None => ("takes this mask with these scores", ""),
        Some(_) => ("adds a bias to the scores under this mask", "remove the bias, or "),
    };
    let reason = format_args!(
        "no kernel for {dtype} and keys {keys} {fault}; {store}{remedy}use what has kernels: {}",
        kinds.join("; ")
    );
    let bias = p.bias.map_or(String::new(), |dtype| format!(" and a bias of {}", dtype.name()));
    Error::unsupported(format_args!("mask {}{bias} ({p})", p.mask), reason)
}
