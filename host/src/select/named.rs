//! Selection of the kernel that the caller names.
use super::refusals::{front, needs_no_splits, of_front, reads_cache, takes_merge};
use super::{ASKED, Choice, Query, attention};
use crate::layout::Layout;
use crate::problem::MAX_ROWS;
use crate::request::Scratch;
use crate::variant::AnyVariant;
use crate::{AttnInfo, Error, Tuning, kernels};
use spec::{Class, Keys, Precision, ProblemKind, ScoreKinds};

/// Returns the named kernel, if it solves the problem. Its mask may be more general than the problem's, and
/// its head dim larger. If it takes no sinks, a merge kernel may add them.
///
/// # Errors
/// Returns [`Error::Invalid`] if the kernel does not solve the problem, or [`Error::Unsupported`] if the
/// device cannot run it.
pub(super) fn choose(q: &Query<'_>, name: &str) -> Result<Choice, Error> {
    if q.problem.invariance.is_promised() {
        let expected =
            "the shape of a batch-invariant request selects its kernel; leave config out, or invariance";
        return Err(Error::invalid("config", name, expected));
    }
    let entry = match q.kind.keys {
        Keys::Latent => on_latents(q, name, "latent caches", "mla"),
        Keys::Listed => on_latents(q, name, "lists of keys of a latent cache", "sparse"),
        Keys::Cache(_) | Keys::OperandCache => on_cache(q, name),
        Keys::Batched | Keys::Varlen | Keys::Quantised | Keys::QuantisedAlone => on_tensors(q, name),
    }?;
    q.on.runs(&entry.contract)?;
    Ok(Choice::new(entry, ASKED))
}

/// Returns the kernel with this symbol: of the request's variant, or of the table.
fn find(q: &Query<'_>, name: &str) -> Option<&'static AttnInfo> {
    let is_named = |e: &&AttnInfo| e.contract.symbol == name;
    match q.problem.variant {
        Some(variant) => variant.kernels().find(is_named),
        None => spec::attention().find(is_named),
    }
}

/// Returns whether a merge kernel must add the problem's sinks, and whether the kernel solves the problem
/// then. A later check compares the tile of a block mask.
fn solves(q: &Query<'_>, e: &AttnInfo) -> (bool, bool) {
    let merges = q.kind.scores.sink && !e.scores.sink;
    let scores = ScoreKinds { sink: q.kind.scores.sink && !merges, ..q.kind.scores };
    (merges, e.solves(&ProblemKind { scores, tile: None, ..q.kind }))
}

/// Returns the named kernel, for keys `what` of this family.
fn on_latents(q: &Query<'_>, name: &str, what: &str, family: &str) -> Result<&'static AttnInfo, Error> {
    q.solving(q.kind.class()).find(|e| e.contract.symbol == name).ok_or_else(|| {
        let dtype = q.problem.dtype.name();
        let expected =
            format_args!("it must be a kernel for {what} of {dtype}: `ferroflash kernels --family {family}`");
        Error::invalid("config", name, expected)
    })
}

/// Returns the named decode kernel, for a problem that decode kernels solve.
fn few(q: &Query<'_>, name: &str) -> Result<&'static AttnInfo, Error> {
    let p = q.problem;
    let Some(entry) = find(q, name).filter(|e| e.class() == Class::Decode) else {
        let expected = "it must be a kernel for caches of keys and values (`mla` kernels read latent \
                        caches): `ferroflash kernels --family decode`, or `paged`, lists them";
        return Err(Error::invalid("config", name, expected));
    };
    reads_cache(entry, p)?;
    if entry.solves(&q.kind) {
        return Ok(entry);
    }
    let expected = format_args!(
        "it must be a kernel for {} rows (queries x query heads per key head), {}, and this mask and page \
         size: `ferroflash kernels --family decode`",
        p.rows(),
        p.named_columns()
    );
    Err(Error::invalid("config", name, expected))
}

fn on_cache(q: &Query<'_>, name: &str) -> Result<&'static AttnInfo, Error> {
    let p = q.problem;
    let named = find(q, name).filter(|e| e.class() == Class::Paged);
    if named.is_none() && q.solving(Class::Decode).next().is_some() {
        return few(q, name);
    }
    needs_no_splits(p)?;
    named.map_or(Ok(()), |entry| reads_cache(entry, p))?;
    let solving = named.map(|e| (e, solves(q, e))).filter(|(_, (_, solves))| *solves);
    let Some((entry, (merges, _))) = solving else {
        let rows = match p.rows() {
            rows if rows > MAX_ROWS => {
                format!(" and {rows} rows per key head, more than decode kernels hold ({MAX_ROWS})")
            }
            _ => String::new(),
        };
        let expected = format_args!(
            "it must be a kernel for {} on a cache of {}, {}{} and this mask{rows}: `ferroflash kernels \
             --family paged`",
            p.dtype.name(),
            q.kind.kv_dtype.name(),
            p.named_columns(),
            match p.precision {
                Precision::Inputs => String::new(),
                precision => format!(", precision {}", precision.name()),
            }
        );
        return Err(Error::invalid("config", name, expected));
    };
    if merges {
        takes_merge(p)?;
    }
    Ok(entry)
}

fn on_tensors(q: &Query<'_>, name: &str) -> Result<&'static AttnInfo, Error> {
    let (p, kind) = (q.problem, &q.kind);
    let decodes = find(q, name).is_some_and(|e| e.class() == Class::Decode);
    if decodes && q.solving(Class::Decode).next().is_some() {
        return few(q, name);
    }
    needs_no_splits(p)?;
    let entry = match p.variant {
        Some(variant) => of_variant(q, variant, name)?,
        None => kernels::by_name(name, kind.mask)?,
    };
    let sequences = if p.varlen.is_some() { "varlen" } else { "equally long" };
    if entry.is_varlen() != p.varlen.is_some() {
        // The error names the planner's choice as an example. The choice solves the problem, even if the
        // named kernel has further faults.
        let tuning = &Tuning::new();
        let any = Query { layout: Layout::ANY, scratch: Scratch::None, tuning, ..*q };
        let other = attention(&any, None)?.kernel.contract.symbol;
        let expected = format_args!("it is not a kernel for {sequences} sequences; {other} is one");
        return Err(Error::invalid("config", name, expected));
    }
    if entry.scores.maxima && !kind.maxima {
        let expected = "it writes `max_logits`; ask for this output without the entropy, or leave config out";
        return Err(Error::invalid("config", name, expected));
    }
    let (merges, solves_it) = solves(q, entry);
    let flat = Query { kind: ProblemKind { slopes: false, ..*kind }, ..*q };
    if !solves_it && !solves(&flat, entry).1 {
        let precision = match p.precision {
            Precision::Inputs => String::new(),
            of => format!(" of precision {}", of.name()),
        };
        let expected = format_args!(
            "this problem needs {}{precision} with mask {}{} and {}, for {sequences} sequences",
            kind.dtype.name(),
            kind.mask.name(),
            kind.scores.name(p.dtype),
            p.named_columns()
        );
        return Err(Error::invalid("config", name, expected));
    }
    if merges {
        takes_merge(p)?;
    }
    if merges && entry.splits {
        let reason =
            "a merge kernel adds sinks, and a launch has two kernels; name a kernel without split-KV";
        return Err(Error::unsupported(format_args!("{name} with attention sinks"), reason));
    }
    if !solves_it {
        let reason = "portable kernels take slopes; name a portable kernel";
        return Err(Error::unsupported(format_args!("{name} with ALiBi slopes"), reason));
    }
    Ok(entry)
}

/// Returns the kernel of a variant with this symbol, for the request's kind of tensors.
///
/// # Errors
/// Returns [`Error::Invalid`], which lists the kernels that the name could be.
fn of_variant(q: &Query<'_>, variant: AnyVariant, name: &str) -> Result<&'static AttnInfo, Error> {
    let p = q.problem;
    let of_front = || of_front(q, q.class(q.kind.class()));
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
