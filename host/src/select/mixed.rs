//! Selection for mixed batches: varlen queries on a KV cache. Some sequences have few queries, others have
//! many.
use super::refusals::{goes_together, needs_no_splits, reads_cache};
use super::{ASKED, Choice, Query};
use crate::request::Splits;
use crate::schedule::most;
use crate::{AttnInfo, Error, MaskKind, Problem, kernels};
use spec::{Class, Isa, MAX_SEQUENCES, ProblemKind};

const MIXED: &str = "a decode kernel takes the sequences of few queries, and work tiles take the other \
                     sequences, in one launch";

/// The reasons why prefill kernels take all sequences of a batch.
const CHUNKS: &str = "varlen queries with batch-invariant splits, so that the batch must not choose a \
                      sequence's kernel: work tiles per query head";
const UNSPLIT: &str = "varlen queries with one split, so that no decode kernel may split keys: work tiles \
                       per query head";
const NOT_PLAIN: &str = "varlen queries with sinks, slopes, a bias, or more than 4096 sequences, which \
                         decode kernels of mixed batches lack: work tiles per query head";
const _: () = assert!(MAX_SEQUENCES == 4096, "the text of NOT_PLAIN");
const NO_KERNEL: &str = "varlen queries, and no decode kernel of mixed batches takes this dtype, head dim, \
                         mask and heads: work tiles per query head";
const ALL_MANY: &str = "varlen queries, many in every sequence: work tiles per query head";
const SLOWER: &str = "varlen queries, many in most sequences, or few keys, so that a decode kernel does not \
                      pay: work tiles per query head";

/// Maximum of the mean queries per sequence for which a batch uses portable kernels although the device has
/// Hopper's instructions: Hopper's pair does not pay, and the batch consists mostly of single queries. This
/// number is an estimate; nobody has measured it.
const MOSTLY_FEW: usize = 32;

/// Minimum of the maximum number of keys for which a decode kernel runs beside Hopper's kernel. The mean
/// number of queries must also be at most half of the maximum: otherwise most sequences have many queries.
/// Time in us (H200, f16, causal, one kernel or two requests, then this pair of kernels):
///
/// | head dim, heads | batch | others | this pair |
/// |---|---|---|---|
/// | 128, 32/8 | 32 single queries and 2 x 512 queries, on 4096 keys | 310 (portable pair), 219 (two requests) | 230 |
/// | 128, 32/8 | 128 single queries on 2048 keys, 1 x 1536 | 314, 287 | 321 |
/// | 128, 32/8 | 256 single queries on 1024 keys, 256 on 8192 | 606, 464 | 370 |
/// | 128, 64/8 | 16 single queries on 32768 keys, 4 x 1024 on 8192 | 4612 (Hopper's kernel alone), 1985 | 2019 |
/// | 64, 64/8 | 64 single queries and 2 x 512 queries, on 4096 keys | 336 (portable pair), 272 | 304 |
/// | 64, 12/12 | 152 sequences of 7 to 512 queries and keys | 79 (portable kernel alone) | 125 |
const LEAST_KEYS: usize = 1024;

/// Selects the prefill kernel for a mixed batch's sequences of many queries. [`few`] selects the decode
/// kernel beside it. The caller may have named this decode kernel. Returns `None` if one kernel should take
/// all sequences.
///
/// # Errors
/// Returns [`Error::Invalid`] or [`Error::Unsupported`] if the named kernel does not solve the problem.
pub(crate) fn many(q: &Query<'_>, config: Option<&str>) -> Result<Option<Choice>, Error> {
    let p = q.problem;
    if p.cache.is_none() || p.latent().is_some() || p.variant.is_some() {
        return Ok(None);
    }
    goes_together(p)?;
    match config {
        None if q.needs_params() => Ok(None),
        None => Ok(choose(q).and_then(Result::ok)),
        Some(name) => kernels::mixed(name).map(|few| named(q, few)).transpose(),
    }
}

/// Selects the decode kernel for the sequences of few queries beside a prefill kernel. Returns `None` if
/// there is none, if it does not take the columns, or if a thread block of it cannot hold one query with all
/// its heads.
pub(crate) fn few(p: &Problem, many: &AttnInfo) -> Option<&'static AttnInfo> {
    few_of(p, &p.kind(), many)
}

fn few_of(p: &Problem, kind: &ProblemKind, many: &AttnInfo) -> Option<&'static AttnInfo> {
    let size = |e: &AttnInfo| (e.kv_dtype, e.head_dim);
    let mut all = spec::of_class(Class::Few, many.dtype);
    all.find(|e| size(e) == size(many) && e.has_columns_for(kind)).filter(|few| most(p, few) > 0)
}

/// Returns the reason why prefill kernels take all sequences of a varlen batch.
pub(super) fn obstacle(q: &Query<'_>) -> Option<&'static str> {
    choose(q)?.err()
}

/// Returns the prefill kernel of a mixed batch, and the reason for it, if the batch may have sequences of few
/// queries. A decode kernel reads the keys of these sequences once for all query heads of a key head. The
/// batch decides which sequences the decode kernel takes, so batch-invariant splits (`Splits::Chunk`) leave
/// all sequences to prefill kernels. Returns `None` for equal query counts.
///
/// # Errors
/// Returns the reason why prefill kernels take all sequences.
fn choose(q: &Query<'_>) -> Option<Result<Choice, &'static str>> {
    q.problem.varlen.map(|[rows, _]| of_rows(q, rows))
}

fn of_rows(q: &Query<'_>, rows: usize) -> Result<Choice, &'static str> {
    let (p, on) = (q.problem, q.on);
    match p.splits {
        Splits::Auto => {}
        Splits::Chunk(_) => return Err(CHUNKS),
        _ => return Err(UNSPLIT),
    }
    if !p.is_of_mixed_kernels() {
        return Err(NOT_PLAIN);
    }
    let all = p.batch.saturating_mul(p.seqlen_q);
    let mut pairs = kernels(q).filter(|(kernel, few)| q.runs(kernel) && q.runs(few)).peekable();
    let has_hopper = pairs.peek().is_some_and(|(kernel, _)| kernel.isa == Isa::Sm90a);
    let mut reason = NO_KERNEL;
    let mut pays = |kernel: &AttnInfo, few: &AttnInfo| {
        let only_few = p.seqlen_q <= most(p, few) as usize;
        let has_few = only_few || p.batch > 1 && rows < all;
        let is_faster = match kernel.isa {
            Isa::Sm90a => p.seqlen_k >= LEAST_KEYS && (rows <= all / 2 || only_few),
            Isa::Sm80 if on.arch() != 90 || kernel.kv_dtype != kernel.dtype && !has_hopper => true,
            Isa::Sm80 => rows <= p.batch.saturating_mul(MOSTLY_FEW),
        };
        reason = if has_few { SLOWER } else { ALL_MANY };
        has_few && is_faster
    };
    match pairs.find(|(kernel, few)| pays(kernel, few)) {
        Some((kernel, _)) => Ok(Choice::new(kernel, MIXED)),
        None => Err(reason),
    }
}

/// Returns the prefill kernel of a mixed batch. The caller named the decode kernel `few`. Batch-invariant
/// splits stay batch-invariant, because a sequence's own number of queries decides which kernel takes it.
///
/// # Errors
/// Returns [`Error::Invalid`] if the kernels do not solve the problem, or [`Error::Unsupported`] if the
/// device cannot run them, or if the request fixes the number of splits: the prefill kernel makes none.
fn named(q: &Query<'_>, few: &AttnInfo) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    reads_cache(few, p)?;
    needs_no_splits(p)?;
    let pairs = || kernels(q).filter(|(_, own)| *own == few && p.varlen.is_some());
    let pair = pairs().find(|(kernel, few)| q.runs(kernel) && q.runs(few)).or_else(|| pairs().next());
    let (kernel, few) = pair.ok_or_else(|| {
        let group = p.heads_q / p.heads_k;
        let expected = match p.varlen {
            None => "it needs varlen queries, and the request has equal query counts".to_owned(),
            Some(_) if !p.is_of_mixed_kernels() => format!(
                "it takes no sinks, slopes and bias, and at most {MAX_SEQUENCES} sequences, and the request \
                 is {p}"
            ),
            Some(_) if !few.covers(q.kind.mask) => {
                format!("it is a kernel for mask {}, and the request is {p}", few.mask.name())
            }
            Some(_) if group > few.tile_m as usize => {
                let most = few.tile_m;
                format!("it takes at most {most} query heads per key head, and the request has {group}")
            }
            Some(_) => format!("it must be a kernel for {}", p.named_columns()),
        };
        let expected = format_args!("{expected}: `ferroflash kernels --family mixed`");
        Error::invalid("config", few.contract.symbol, expected)
    })?;
    on.runs(&few.contract)?;
    on.runs(&kernel.contract)?;
    Ok(Choice::new(kernel, ASKED))
}

/// Returns the prefill kernels for a mixed batch, each with its decode kernel, in order of preference:
/// Hopper's kernel, if it accepts the tensors, then portable kernels.
fn kernels<'a>(q: &'a Query<'_>) -> impl Iterator<Item = (&'static AttnInfo, &'static AttnInfo)> + 'a {
    let is_hoppers = |e: &&AttnInfo| q.kind.mixed && e.has_maps() && e.mask == MaskKind::Causal;
    let hopper = q.solving(Class::Paged).filter(is_hoppers).filter(|_| q.on.tensor_maps);
    let hopper = hopper.min_by_key(|e| e.columns()).filter(|e| q.layout.suits(e).is_ok());
    let all = hopper.into_iter().chain(q.solving(Class::Many));
    all.filter_map(|kernel| Some((kernel, few_of(q.problem, &q.kind, kernel)?)))
}
