//! The pass of statistics: it computes the scores again, behind the passes of the attention, and writes the
//! outputs of rows that their kernels do not write. It therefore composes with all of them.
use crate::request::{AttentionRequest, Invariance, RowOutputs};
use crate::schedule::Scheduled;
use crate::{AttnInfo, Capabilities, Error, Problem};
use spec::{Class, Keys, PageKind, Pass, Precision, ProblemKind, STATISTICS};

/// The pass of statistics of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Statistics {
    pub pass: Scheduled,
    /// Whether the request names the kernel, so that its step is the launch's main step.
    pub is_named: bool,
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

/// Returns whether only the pass may write the largest scores: kernels of the attention write those of dense
/// tensors, but rescale O with every new maximum then. O would have other bits than that of varlen tensors.
pub(super) fn keeps_promise(r: &AttentionRequest<'_>, p: &Problem) -> bool {
    r.max_logits.is_some() && p.invariance == Invariance::Batch && find(p, None).is_some()
}

/// Returns a request without the outputs that the pass writes.
pub(super) fn without<'a>(r: &AttentionRequest<'a>) -> AttentionRequest<'a> {
    r.with_rows(r.lse.into())
}

/// Returns the request of the pass, or `None` if it has no output. Kernels of statistics write the entropy in
/// the place of the LSE.
pub(super) fn request<'a>(r: &AttentionRequest<'a>) -> Option<AttentionRequest<'a>> {
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
pub(super) fn choose(p: &Problem, on: &Capabilities, config: Option<&str>) -> Result<Statistics, Error> {
    let named = named(config);
    let kernel = find(p, named).ok_or_else(|| match config.filter(|_| named.is_some()) {
        Some(name) => {
            let expected = format_args!("it must be a kernel of statistics for {p}, or leave config out");
            Error::invalid("config", name, expected)
        }
        None => unsolved(p),
    })?;
    on.runs(&kernel.contract)?;
    Ok(Statistics { pass: Scheduled::new(p, kernel, on, |_| false)?, is_named: named.is_some() })
}

/// Returns the error for a problem that no kernel of statistics takes.
fn unsolved(p: &Problem) -> Error {
    if p.precision != Precision::Inputs {
        let feature = format_args!("entropy or max_logits with precision {}", p.precision.name());
        let reason = "kernels of statistics compute scores in the precision of the inputs; leave both \
                      outputs out, or take that precision";
        return Error::unsupported(feature, reason);
    }
    let feature = match p.variant {
        Some(variant) => format!("entropy or max_logits of variant {}", variant.name()),
        None if p.kind().keys == Keys::Listed => "entropy or max_logits of listed keys".to_owned(),
        None => format!("entropy or max_logits of {p}"),
    };
    let reason = "kernels of statistics take all keys of a sequence, in the queries' dtype, with full and \
                  causal masks and windows, softcap and slopes, and head dims up to 256 (more on KV caches \
                  alone); leave both outputs out";
    Error::unsupported(feature, reason)
}
