//! The pass of statistics: it computes the scores again, behind the passes of the attention, and writes the
//! outputs of rows that their kernels do not write. It therefore composes with all of them.
use crate::launch::Launch;
use crate::lower::{self, Refusal};
use crate::request::{
    AttentionRequest, Invariance, KeysValues, LseView, MAX_ROW_BYTES, Mask, Queries, RowOutputs, Scores,
    TensorView,
};
use crate::schedule::Scheduled;
use crate::{AttnInfo, Capabilities, Error, Problem};
use spec::{Class, Keys, PageKind, Pass, Precision, ProblemKind, STATISTICS, States};

/// The pass of statistics of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Statistics {
    pub pass: Scheduled,
    /// Whether the request names the kernel, so that its step is the launch's main step.
    pub is_named: bool,
    /// Whether the query heads of a key head are the rows of a tile.
    pub grouped: bool,
}

/// Returns the kernel of statistics with this name.
pub(super) fn named(config: Option<&str>) -> Option<&'static AttnInfo> {
    STATISTICS.iter().find(|e| Some(e.contract.symbol) == config)
}

/// The reason why a plan without the pass does not take a request that needs it.
pub(super) const UNPLANNED: &str = "max_logits: with invariance `Batch`, a kernel of statistics writes it, \
                                    and the plan has none; make a plan for a request with it";

/// Returns whether a request needs the pass: for an entropy, and for the largest scores if no kernel of the
/// attention can write them, or if the request names a kernel of statistics.
pub(super) fn is_needed(r: &AttentionRequest<'_>, p: &Problem, config: Option<&str>) -> bool {
    let is_dense = p.kind().class() == Class::Dense;
    let of_maxima = r.max_logits.is_some() && (!is_dense || named(config).is_some());
    r.entropy.is_some() || of_maxima || keeps_promise(r, p)
}

/// Returns whether one of Hopper's kernels may write the largest scores instead of the pass, which dense
/// tensors need not: varlen tensors, without an entropy and without a promise about the bits of O.
pub(super) fn may_spare(r: &AttentionRequest<'_>, p: &Problem, config: Option<&str>) -> bool {
    let is_varlen = p.kind().class() == Class::Varlen;
    is_varlen && r.entropy.is_none() && named(config).is_none() && !keeps_promise(r, p)
}

/// Returns whether only the pass may write the largest scores: kernels of the attention write those of dense
/// tensors, but rescale O with every new maximum then. O would have other bits than that of varlen tensors.
pub(super) fn keeps_promise(r: &AttentionRequest<'_>, p: &Problem) -> bool {
    r.max_logits.is_some() && p.invariance == Invariance::Batch && find(p, None).is_some()
}

/// The reason why a plan whose tiles have query heads as rows does not take a request.
const UNGROUPED: &str = "lse, max_logits, entropy: the plan has a distance of 1 between the heads of one \
                         query, and heads of q less than 2^27 bytes apart; make a plan for a request with \
                         these strides";

/// Returns the request of the pass for one query per sequence, with the query heads of a key head as queries:
/// a tile then reads the keys once for all of them. Without a mask, all queries see the same keys. Returns
/// `None` if another request has to stay as it is.
fn grouped<'a>(r: &AttentionRequest<'a>) -> Option<AttentionRequest<'a>> {
    let heads = match &r.kv {
        KeysValues::Cache(cache) => cache.pages.keys.shape[2],
        KeysValues::Tensors { k, .. } => k.shape[2],
        _ => return None,
    };
    let is_anywhere = matches!(r.mask, Mask::Full) || r.problem().is_bottom_right();
    let sees_all = matches!(r.mask, Mask::Full | Mask::Causal) && is_anywhere && r.scores.alibi.is_none();
    let [batch, queries, heads_q, _] = r.q.shape;
    let of_one = matches!(r.queries, Queries::Batched) && queries == 1 && r.scores.bias.is_none();
    let rows = [&r.lse, &r.max_logits].map(|view| view.is_none_or(|view| view.strides[1] == 1));
    if !of_one || !sees_all || heads == 0 || heads_q <= heads || rows != [true; 2] {
        return None;
    }
    let group = heads_q / heads;
    let turned = |of: TensorView| {
        let [of_batch, _, of_head, of_column] = of.strides;
        // Validation has checked the distance of rows, not that of heads.
        if u64::try_from(of_head).ok()?.checked_mul(of.element_bytes())? >= MAX_ROW_BYTES {
            return None;
        }
        let strides = [of_batch, of_head, of_head.checked_mul(group as i64)?, of_column];
        Some(TensorView { shape: [batch, group, heads, of.shape[3]], strides, ..of })
    };
    let (q, o) = (turned(r.q)?, turned(r.o)?);
    let view =
        |of: LseView| LseView { shape: [batch, heads, group], strides: [of.strides[0], group as i64], ..of };
    let scores = Scores { sinks: None, ..r.scores };
    let (lse, max_logits) = (r.lse.map(view), r.max_logits.map(view));
    Some(AttentionRequest { q, o, scores, mask: Mask::Full, lse, max_logits, ..*r })
}

/// Adds the pass to a launch.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not accept the outputs.
pub(super) fn lower(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Statistics,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    let Some(r) = request(r) else { return Ok(()) };
    if s.is_named {
        launch.main_follows();
    }
    if !s.grouped {
        return lower::attention((&r, p), &s.pass, States::NONE, launch);
    }
    let r = grouped(&r).ok_or(Refusal::Tensors(UNGROUPED))?;
    lower::attention((&r, &r.problem()), &s.pass, States::NONE, launch)
}

/// Returns a request without the outputs that the pass writes.
pub(super) fn without<'a>(r: &AttentionRequest<'a>) -> AttentionRequest<'a> {
    r.with_rows(r.lse.into())
}

/// Returns the request of the pass, or `None` if it has no output. Kernels of statistics write the entropy in
/// the place of the LSE.
fn request<'a>(r: &AttentionRequest<'a>) -> Option<AttentionRequest<'a>> {
    let rows = RowOutputs { lse: r.entropy, max_logits: r.max_logits, entropy: None };
    rows.named().any(|(_, view)| view.is_some()).then(|| r.with_rows(rows))
}

/// Returns the kernel of statistics for a valid problem: the named one, or the one with the fewest columns.
fn find(p: &Problem, named: Option<&'static AttnInfo>) -> Option<&'static AttnInfo> {
    let kind = p.sinks(false).kind();
    // The kernels read no values.
    let columns = [kind.columns[0]; 2];
    let keys = match kind.keys {
        Keys::Cache(_) | Keys::Latent => Keys::Cache(PageKind::Rows),
        others => others,
    };
    let (pass, o_dtype) = (Pass::Statistics, kind.dtype);
    let kind = ProblemKind { pass, columns, equal_strides: true, keys, o_dtype, ..kind };
    let mut solving = STATISTICS.iter().filter(|e| p.variant.is_none() && e.solves(&kind));
    match named {
        Some(named) => solving.find(|e| *e == named),
        None => solving.min_by_key(|e| e.head_dim),
    }
}

/// Selects and schedules the pass for a valid problem.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel of statistics takes the problem or runs on the device, or
/// [`Error::Invalid`] if the named kernel does not take it.
pub(super) fn choose(
    (r, p): (&AttentionRequest<'_>, &Problem),
    on: &Capabilities,
    config: Option<&str>,
) -> Result<Statistics, Error> {
    let grouped = request(r).and_then(|r| grouped(&r)).map(|r| r.problem());
    let named = named(config);
    if let Some(problem) = grouped.filter(|problem| find(problem, named).is_some()) {
        return Ok(Statistics { grouped: true, ..of_problem(&problem, named, on, config)? });
    }
    of_problem(p, named, on, config)
}

fn of_problem(
    p: &Problem,
    named: Option<&'static AttnInfo>,
    on: &Capabilities,
    config: Option<&str>,
) -> Result<Statistics, Error> {
    let kernel = find(p, named).ok_or_else(|| match config.filter(|_| named.is_some()) {
        Some(name) => {
            let expected = format_args!("it must be a kernel of statistics for {p}, or leave config out");
            Error::invalid("config", name, expected)
        }
        None => unsolved(p),
    })?;
    on.runs(&kernel.contract)?;
    let pass = Scheduled::new(p, kernel, on, |_| false)?;
    Ok(Statistics { pass, is_named: named.is_some(), grouped: false })
}

/// Returns the error for a problem that no kernel of statistics takes.
fn unsolved(p: &Problem) -> Error {
    if p.precision != Precision::Inputs {
        let remedy = match p.cache {
            _ if p.is_eight_bit() => "leave both outputs out, or convert q, k and v to f16 or bf16",
            Some(_) => "leave both outputs out, or use `Precision::Inputs` on a cache of the queries' dtype",
            None => "leave both outputs out, or use `Precision::Inputs`",
        };
        let feature = format_args!("entropy or max_logits with precision {}", p.precision.name());
        let reason = "kernels of statistics compute scores in the precision of the inputs";
        return Error::unsupported(feature, format_args!("{reason}; {remedy}"));
    }
    let feature = match p.variant {
        Some(variant) => format!("entropy or max_logits of variant {}", variant.name()),
        None if p.kind().keys == Keys::Listed => "entropy or max_logits of listed keys".to_owned(),
        None if p.kv_dtype != p.dtype => {
            format!("entropy or max_logits of {p} on keys of {}", p.kv_dtype.name())
        }
        None => format!("entropy or max_logits of {p}"),
    };
    let reason = "kernels of statistics take all keys of a sequence, in the queries' dtype, with full and \
                  causal masks and windows, softcap and slopes, and head dims up to 256 (more on KV caches \
                  alone); leave these outputs out. On dense tensors, `max_logits` alone goes with all masks \
                  and biases";
    Error::unsupported(feature, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::request::{Alignment, Index, KvCache, KvPages};

    fn decode<'a>(queries: usize, lse_of_head: i64) -> AttentionRequest<'a> {
        let view = |shape: [usize; 4]| TensorView::bshd(4096, 1 << 20, DType::F16, shape);
        let pages = KvPages::new(view([3, 64, 2, 64]), view([3, 64, 2, 64]));
        let q = view([3, queries, 8, 64]);
        let cache = KvCache::dense(pages, Index::new(4096, 3));
        let lse = LseView::new(4096, 1 << 10, [3, 8, queries], [8 * lse_of_head, lse_of_head]);
        AttentionRequest::cached(q, cache, q).mask(Mask::Causal).entropy(lse)
    }

    #[test]
    fn heads_of_one_query_are_rows() {
        let r = request(&decode(1, 1)).and_then(|r| grouped(&r)).expect("one query, heads side by side");
        let lse = r.lse.expect("the place of the entropy");
        assert_eq!((r.q.shape, &r.q.strides[..3]), ([3, 4, 2, 64], &[512, 64, 256][..]));
        assert_eq!((lse.shape, lse.strides, r.mask), ([3, 2, 4], [8, 4], Mask::Full));
    }

    #[test]
    fn a_query_that_sees_the_first_key_alone_stays() {
        let view = |shape| TensorView::bshd(4096, 1 << 20, DType::F16, shape);
        let [q, k] = [view([3, 1, 8, 64]), view([3, 100, 2, 64])];
        let r = AttentionRequest::dense(q, k, k, q).entropy(LseView::contiguous(4096, 24, [3, 8, 1]));
        let groups = |r: AttentionRequest<'_>| request(&r).is_some_and(|r| grouped(&r).is_some());
        let (causal, top_left) = (r.mask(Mask::Causal), Alignment::TopLeft);
        assert_eq!([groups(causal), groups(causal.alignment(top_left))], [true, false]);
        assert!(groups(r.alignment(top_left)), "without a mask, a query sees all keys");
    }

    #[test]
    fn heads_that_are_too_far_apart_for_rows_stay() {
        for (bytes, is_grouped) in [(MAX_ROW_BYTES - 16, true), (MAX_ROW_BYTES, false), (1 << 33, false)] {
            let mut r = decode(1, 1);
            (r.q.strides[2], r.q.elements) = (bytes as i64 / 2, 1 << 40);
            let r = request(&r).expect("an entropy");
            assert_eq!(grouped(&r).is_some(), is_grouped, "{bytes}");
        }
    }

    #[test]
    fn other_requests_stay() {
        for (queries, lse_of_head) in [(2, 2), (1, 2)] {
            let r = request(&decode(queries, lse_of_head)).expect("an entropy");
            assert!(grouped(&r).is_none(), "{queries} {lse_of_head}");
        }
    }
}
