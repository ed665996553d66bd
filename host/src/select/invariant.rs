//! Selection for batch-invariant problems. Only the shape of a sequence and the kind of device decide:
//! numbers of heads and columns, dtypes, mask, scores, layout. The number of sequences, their lengths and the
//! number of SMs do not.
use super::{Choice, Query, pair_in_any_batch, refusals};
use crate::request::Invariance;
use crate::schedule::most;
use crate::{AttnInfo, Error, MaskKind};
use spec::{Class, Keys, PageKind, ProblemKind};

pub(crate) const INVARIANT: &str = "batch-invariant: the heads, columns, dtypes, mask and scores of a \
                                    sequence select the kernel, whatever its batch is";

/// Returns the kernel of a problem, which takes every sequence of this shape.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem in every batch.
pub(super) fn choose(q: &Query<'_>) -> Result<Choice, Error> {
    refusals::has_tile(q)?;
    refusals::needs_no_splits(q.problem)?;
    let kernel = match q.kind.keys {
        Keys::Batched | Keys::Varlen | Keys::Quantised | Keys::QuantisedAlone => on_tensors(q)?,
        Keys::Cache(_) | Keys::OperandCache | Keys::Latent | Keys::Listed => on_cache(q),
    };
    match kernel {
        Some(kernel) => Ok(Choice::new(kernel, INVARIANT)),
        None => without_sinks(q),
    }
}

/// Returns the kernel whose output a merge kernel completes with sinks.
///
/// # Errors
/// Returns [`Error::Unsupported`] without sinks, or if no kernel solves the problem without them.
fn without_sinks(q: &Query<'_>) -> Result<Choice, Error> {
    let p = q.problem;
    if !p.sinks || p.variant.is_some_and(|variant| variant.scores().sink) {
        let all: Vec<_> = q.solving(q.kind.class()).collect();
        return Err(refusals::no_tiles(q, &all));
    }
    let choice = choose(&q.of(&p.sinks(false), q.scratch))?;
    refusals::takes_merge(p)?;
    Ok(choice)
}

/// Returns the kernels with work tiles that solve the problem, best first. Rows of Hopper's kernels share the
/// moments at which they rescale, so a division of queries into chunks shows in their bits.
fn tiles(q: &Query<'_>) -> Vec<&'static AttnInfo> {
    let all = || q.solving(q.kind.class()).filter(|e| !e.splits && q.runs(e));
    let narrowest = all().filter(|e| !e.has_maps()).map(|e| e.head_dim).min().unwrap_or(u32::MAX);
    let hopper = |e: &AttnInfo| {
        q.problem.invariance == Invariance::Batch && e.head_dim <= narrowest && q.layout.suits(e).is_ok()
    };
    let mut all: Vec<_> = all().filter(|e| !e.has_maps() || hopper(e)).collect();
    all.sort_by_key(|e| (!e.has_maps(), e.columns(), e.mask != q.kind.mask));
    all
}

/// Whether two kernels compute a row by the same instructions in the same order.
fn compute_alike(a: &AttnInfo, b: &AttnInfo) -> bool {
    let of = |e: &AttnInfo| (e.isa, e.schedule, e.columns(), e.scores, [e.tile_m, e.tile_n, e.warps()]);
    of(a) == of(b)
}

/// Returns the kernel for tensors. Sequences of equal lengths and varlen sequences run kernels that compute
/// alike.
///
/// # Errors
/// Returns [`Error::Unsupported`] if a variant has kernels for both, but none that compute alike.
fn on_tensors(q: &Query<'_>) -> Result<Option<&'static AttnInfo>, Error> {
    let of = |keys| tiles(&Query { kind: ProblemKind { keys, ..q.kind }, ..*q });
    let [dense, varlen] = [of(Keys::Batched), of(Keys::Varlen)];
    let own = if q.kind.keys == Keys::Batched { &dense } else { &varlen };
    if dense.is_empty() || varlen.is_empty() {
        return Ok(own.first().copied());
    }
    let is_pair = |a: &AttnInfo, b: &AttnInfo| a.mask == b.mask && compute_alike(a, b);
    let pairs = varlen.iter().filter_map(|v| dense.iter().find(|d| is_pair(d, v)).map(|d| [*d, *v]));
    match pairs.into_iter().next() {
        Some([dense, varlen]) => Ok(Some(if q.kind.keys == Keys::Batched { dense } else { varlen })),
        None => {
            let feature = format_args!("invariance {:?} for {}", q.problem.invariance, q.problem);
            let reason = "no dense kernel and varlen kernel have equal tiles; compile one more kernel of the \
                          variant (`entry!`)";
            Err(Error::unsupported(feature, reason))
        }
    }
}

/// Returns the kernel for a KV cache, which takes all queries of the problem. If the kernels of mixed batches
/// take the shape, a sequence of few queries runs the decode kernel that computes like theirs.
fn on_cache(q: &Query<'_>) -> Option<&'static AttnInfo> {
    let (p, tiles) = (q.problem, tiles(q));
    let decode = || {
        let mut all: Vec<_> =
            q.solving(Class::Decode).filter(|e| q.runs(e) && !e.is_for_short_work()).collect();
        // A kernel for tiled pages splits keys among its warps like a kernel for all pages.
        all.sort_by_key(|e| (e.mask == MaskKind::Local, e.keys == Keys::Cache(PageKind::Rows)));
        all
    };
    let pair = (p.invariance == Invariance::Batch).then(|| pair_in_any_batch(q)).flatten();
    match pair {
        Some([few, _]) if p.varlen.is_none() && p.seqlen_q <= most(p, few) as usize => {
            decode().into_iter().find(|e| compute_alike(e, few))
        }
        Some([_, many]) => tiles.into_iter().find(|e| compute_alike(e, many)),
        // Where work tiles lack a shape, varlen queries lack it too.
        None if tiles.is_empty() && p.invariance == Invariance::Batch => {
            decode().into_iter().min_by_key(|e| (e.columns(), e.tile_m))
        }
        None => tiles.first().copied(),
    }
}
