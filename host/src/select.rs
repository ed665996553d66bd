//! Selects kernels from tables. Each line of a table names a kernel and the reason for choosing it.
mod append;
mod cache;
mod decode;
mod hopper;
mod hopper_variant;
mod merge;
mod mixed;
mod mla;
mod portable;
mod variant;
mod varlen;

pub(crate) use append::append;
pub(crate) use merge::merge;
pub(crate) use mixed::{few, many};

use crate::request::{AttentionRequest, Scratch, Splits};
use crate::schedule::Split;
use crate::{AttnInfo, Capabilities, Error, MaskKind, Problem, Tuning, kernels, lower};
use hopper::Answer;
use spec::ScoreKinds;

/// The inputs of selection.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub problem: &'a Problem,
    /// The request's tensors; `None` stands for tensors that every kernel accepts.
    pub tensors: Option<&'a AttentionRequest<'a>>,
    pub on: &'a Capabilities,
    pub tuning: &'a Tuning,
    /// Scratch memory that launches may use.
    pub scratch: Scratch,
    /// Whether the kernel must merge states over other keys into its results.
    pub merges_states: bool,
}

impl Query<'_> {
    /// Checks that a kernel accepts the tensors.
    ///
    /// # Errors
    /// Returns the reason why the kernel does not accept the tensors.
    fn takes(&self, kernel: &AttnInfo) -> Result<(), &'static str> {
        self.tensors.map_or(Ok(()), |r| lower::takes(r, kernel))
    }
}

/// Returns the smallest numbers of columns, of K and of V, among kernels with this mask that accept the
/// problem's columns.
fn smallest(p: &Problem, mask: MaskKind, kernels: &[AttnInfo]) -> Option<[u32; 2]> {
    let fits = |e: &&AttnInfo| e.mask == mask && p.has_columns_for(e);
    kernels.iter().filter(fits).map(AttnInfo::columns).min()
}

/// Returns the mask and the smallest numbers of columns, of K and of V, of kernels that accept the problem's
/// columns. General kernels ([`MaskKind::Local`]) also solve the problems of full and causal kernels, and
/// accept more pairs of different numbers.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel accepts K and V of these different numbers of columns.
fn columns(p: &Problem, mask: MaskKind, kernels: &[AttnInfo]) -> Result<(MaskKind, [u32; 2]), Error> {
    let of = |mask| smallest(p, mask, kernels).map(|columns| (mask, columns));
    of(mask).or_else(|| of(MaskKind::Local)).ok_or_else(|| apart(p, kernels.iter()))
}

/// Returns the error for K and V of different numbers of columns, or of different strides.
fn apart<'a>(p: &Problem, kernels: impl Iterator<Item = &'a AttnInfo>) -> Error {
    let [k, v] = p.columns();
    let what = match k == v {
        true => "k and v have different strides in the KV cache",
        false => "k and v have different numbers of columns",
    };
    let reason = match kernels.filter(|e| e.has_own_values()).map(AttnInfo::columns).max() {
        Some([most_k, most]) => {
            let remedy = match k > most_k as usize {
                true if k == v => "give v the strides of k".to_owned(),
                true => format!("give v and o {k} columns, and fill them with zeros"),
                false => format!(
                    "split v and o into parts of at most {most} columns, and make one request for each part"
                ),
            };
            format!("{what}: kernels then take at most {most_k} columns of k and {most} of v; {remedy}")
        }
        None => format!(
            "{what}, which no kernel for this dtype of the KV cache takes; use a cache of the queries' \
             dtype, or copy v into a cache of k's shape and strides"
        ),
    };
    Error::unsupported(p.named_columns(), reason)
}

/// Checks that a named kernel reads the KV cache's dtype for queries of the problem's dtype.
///
/// # Errors
/// Returns [`Error::Invalid`], which names the dtypes.
fn reads_cache(e: &AttnInfo, p: &Problem) -> Result<(), Error> {
    let Some(cache) = p.cache.filter(|cache| [e.dtype, e.kv_dtype] != [p.dtype, cache.dtype]) else {
        return Ok(());
    };
    let expected = format_args!(
        "it is a kernel for {} on caches of {}, and the request has {} on a cache of {}; name another kernel \
         (`ferroflash kernels`), or leave config out",
        e.dtype.name(),
        e.kv_dtype.name(),
        p.dtype.name(),
        cache.dtype.name()
    );
    Err(Error::invalid("config", e.contract.symbol, expected))
}

/// Returns the number of a kernel's work tiles: at least one per sequence and head.
fn tiles(p: &Problem, e: &AttnInfo) -> u64 {
    match (p.varlen, p.cache) {
        (None, None) => p.tiles(e.tile_m),
        _ => {
            let m_blocks = p.totals()[0].div_ceil(e.tile_m as usize).max(p.batch);
            (m_blocks as u64).saturating_mul(p.heads_q as u64)
        }
    }
}

/// Checks that the request does not need a number of splits that only decode kernels can make. Every kernel
/// on KV caches accepts chunks: without split-KV, the result of a sequence depends on that sequence alone.
pub(crate) fn needs_no_splits(p: &Problem) -> Result<(), Error> {
    const REASON: &str = "only decode kernels support splits: at most 64 rows (queries x query heads per key \
                          head), equal query counts per sequence, bottom-right, without ALiBi slopes";
    match p.splits {
        Splits::Exactly(2..) => Err(Error::unsupported(format_args!("{:?}", p.splits), REASON)),
        _ => Ok(()),
    }
}

/// The reason if a kernel's mask is more general than the problem's.
const GENERAL: &str = "k and v of these different numbers of columns: the kernel for every mask, window and \
                       softcap takes them";

/// A selected kernel, or what is made of it, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<K = &'static AttnInfo> {
    pub kernel: K,
    pub reason: &'static str,
    /// The fallback for tensors that `kernel` does not accept.
    pub fallback: Option<K>,
}

impl<K: Copy> Choice<K> {
    /// Returns a kernel without fallback: it accepts all tensors, or the caller named it.
    const fn new(kernel: K, reason: &'static str) -> Self {
        Choice { kernel, reason, fallback: None }
    }
}

/// The reason for a kernel that the caller named.
pub(crate) const ASKED: &str = "the request names this kernel";
/// The reason if sequences on a KV cache would run faster with splits, but stay unsplit.
pub(crate) const UNSPLIT: &str = "without a workspace, no sequence is split by its keys: SMs may idle";
const MEASURED: &str = "`ferroflash sweep` measured it as the fastest for this size on this device";

/// Selects the kernel that solves a whole problem: the named one, or the planner's choice.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or [`Error::Invalid`] if
/// the named kernel does not solve it.
pub(crate) fn attention(q: &Query<'_>, config: Option<&str>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    variant::goes_together(p)?;
    if p.cache.is_some() {
        return cache::choose(q, config);
    }
    if on.arch() < 80 {
        let (major, minor) = on.compute_capability;
        let feature = format_args!("compute capability {major}.{minor} ({})", on.name);
        return Err(Error::unsupported(
            feature,
            "kernels need 8.0 or newer: A100, RTX 30, L4, H100 and later",
        ));
    }
    let mask = p.mask_kind();
    if config.is_some_and(|name| decode::by_name(p, name).is_some()) && decode::takes(p) {
        return decode::choose(p, on, config);
    }
    let few = if config.is_none() { decode::on_tensors(q) } else { None };
    if let Some(choice) = few {
        let fallback = match p.varlen {
            None => portable::choose(p, mask, on, Scratch::None).map(|choice| choice.kernel),
            Some(_) => varlen::portable(p, mask, on).map(|(kernel, _)| kernel),
        };
        return Ok(Choice { fallback: fallback.ok().filter(|_| !variant::is_needed(p)), ..choice });
    }
    needs_no_splits(p)?;
    if let Some(name) = config {
        return named(name, q, mask);
    }
    if variant::is_needed(p) {
        return variant::choose(q);
    }
    if p.varlen.is_some() {
        return varlen::choose(q, mask);
    }
    // The measured kernel may be wrong for this request: a size class does not include slopes, and a card's
    // name does not include the driver's version.
    let measured = q.tuning.best(&on.name, p);
    if let Some(name) = measured.filter(|name| !hopper::is_out_of_reach(name, p, on)) {
        let measured = named(name, q, mask).map_err(|e| {
            let expected = format_args!("it does not solve this problem ({e}); run `ferroflash sweep` again");
            Error::invalid("tuning", name, expected)
        });
        let choice = Choice { reason: MEASURED, ..measured? };
        // The measurement used a workspace, and tensors that the kernel accepts. Without these, the table
        // decides.
        let workspace = Split::new(p, choice.kernel, on)?.map_or(0, |split| split.workspace());
        if q.takes(choice.kernel).is_ok() && q.scratch.allows(workspace) {
            let by_maps = choice.kernel.has_maps();
            let fallback = by_maps.then(|| portable::choose(p, mask, on, Scratch::None)).transpose()?;
            return Ok(Choice { fallback: fallback.map(|choice| choice.kernel), ..choice });
        }
    }
    let portable = |scratch| portable::choose(p, mask, on, scratch);
    match hopper::dense(q, mask) {
        Answer::Taken(kernel, reason) => {
            let fallback = Some(portable(Scratch::None)?.kernel);
            Ok(Choice { fallback, ..Choice::new(kernel, reason) })
        }
        Answer::Refused(reason) => Ok(Choice { reason, ..portable(q.scratch)? }),
        Answer::Slower(_) | Answer::Portable => portable(q.scratch),
    }
}

/// Returns the named kernel for tensors, by its symbol or by a name of the lineage, if it solves the problem.
/// The kernel's dtype and scores must equal the problem's (a merge kernel may add sinks), the kernel's mask
/// must be at least as general, and its head dim at least as large.
fn named(name: &str, q: &Query<'_>, mask: MaskKind) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    let entry = match p.variant {
        Some(variant) => variant::by_name(variant, p, name)?,
        None => kernels::by_name(name, mask)?,
    };
    let sloped = hopper_variant::takes_slopes(entry, p);
    let general = sloped || variant::covers(entry.mask, mask, false);
    let scores = p.score_kinds();
    let merges = scores.sink && !entry.scores.sink;
    let scored = entry.scores == ScoreKinds { sink: scores.sink && !merges, alibi: sloped, ..scores };
    let sequences = if p.varlen.is_some() { "varlen" } else { "equally long" };
    if entry.is_varlen() != p.varlen.is_some() {
        // The error names the planner's choice as an example. The choice solves the problem, even if the
        // named kernel has further faults.
        let any = Query { tensors: None, scratch: Scratch::None, tuning: &Tuning::new(), ..*q };
        let other = attention(&any, None)?.kernel.contract.symbol;
        let expected = format_args!("it is not a kernel for {sequences} sequences; {other} is one");
        return Err(Error::invalid("config", name, expected));
    }
    if entry.dtype != p.dtype || !general || !scored || !p.has_columns_for(entry) {
        let expected = format_args!(
            "this problem needs {} with mask {}{} and {}, for {sequences} sequences",
            p.dtype.name(),
            mask.name(),
            scores.name(p.dtype),
            p.named_columns()
        );
        return Err(Error::invalid("config", name, expected));
    }
    if merges {
        variant::takes_merge(p)?;
    }
    if merges && entry.splits {
        let reason =
            "a merge kernel adds sinks, and a launch has two kernels; name a kernel without split-KV";
        return Err(Error::unsupported(format_args!("{name} with attention sinks"), reason));
    }
    if entry.has_maps() && p.alibi && !sloped {
        return Err(Error::unsupported(
            format_args!("{name} with ALiBi slopes"),
            "portable kernels take slopes; name a portable kernel",
        ));
    }
    on.runs(&entry.contract)?;
    Ok(Choice::new(entry, ASKED))
}
