//! The two passes of a mixed batch: varlen queries on a KV cache, where some sequences have few queries and
//! others have many.
use crate::request::{Invariance, Splits};
use crate::schedule::{most, numbers_bytes};
use crate::select::{
    ASKED, Choice, INVARIANT, Pair, Query, goes_together, needs_no_splits, pair_in_any_batch, pairs,
    reads_cache,
};
use crate::{AttnInfo, Error, kernels};
use spec::{Isa, MAX_SEQUENCES, Precision};

const MIXED: &str = "a decode kernel takes the sequences of few queries, and work tiles take the other \
                     sequences, in one launch";

/// The reasons why prefill kernels take all sequences of a batch.
const UNSPLIT: &str = "varlen queries with one split, so that no decode kernel may split keys: work tiles \
                       per query head";
const NOT_PLAIN: &str = "varlen queries with slopes, a bias, or more than 4096 sequences, which decode \
                         kernels of mixed batches lack: work tiles per query head";
const _: () = assert!(MAX_SEQUENCES == 4096, "the text of NOT_PLAIN");
const NO_KERNEL: &str = "varlen queries, and no decode kernel of mixed batches takes this dtype, head dim, \
                         mask, scores and heads: work tiles per query head";
const ALL_MANY: &str = "varlen queries, many in every sequence: work tiles per query head";
const NO_ROOM: &str = "varlen queries, and no workspace for the numbers of a mixed batch's tiles: work tiles \
                       per query head";
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

/// Returns the kernels of a mixed batch, or why one kernel takes all sequences, if the batch may have
/// sequences of few queries. A decode kernel reads the keys of these sequences once for all query heads of a
/// key head. Batch-invariant batches always run on two kernels if there are such kernels: a sequence's own
/// number of queries then decides which kernel takes it.
///
/// # Errors
/// Returns [`Error::Invalid`] or [`Error::Unsupported`] if the named kernel does not solve the problem.
pub(super) fn choose(
    q: &Query<'_>,
    config: Option<&str>,
) -> Result<Result<Choice<Pair>, Option<&'static str>>, Error> {
    let p = q.problem;
    let of_inputs = p.precision == Precision::Inputs;
    if p.cache.is_none() || p.latent().is_some() || p.variant.is_some() || !of_inputs {
        return Ok(Err(None));
    }
    goes_together(p)?;
    match (config, p.varlen) {
        (None, Some(_)) if p.invariance.is_promised() => {
            let pair = (p.invariance == Invariance::Batch).then(|| pair_in_any_batch(q)).flatten();
            Ok(pair.map(|pair| Choice::new(pair, INVARIANT)).ok_or(None))
        }
        (Some(name), _) => kernels::mixed(name).map_or(Ok(Err(None)), |few| named(q, few).map(Ok)),
        (None, Some([rows, _])) if p.sinks || !q.needs_params() => Ok(of_rows(q, rows).map_err(Some)),
        (None, _) => Ok(Err(None)),
    }
}

/// Returns the kernels of a mixed batch with this number of queries in all.
///
/// # Errors
/// Returns the reason why prefill kernels take all sequences.
fn of_rows(q: &Query<'_>, rows: usize) -> Result<Choice<Pair>, &'static str> {
    let (p, on) = (q.problem, q.on);
    if matches!(p.splits, Splits::Exactly(_)) {
        return Err(UNSPLIT);
    }
    if !p.is_of_mixed_kernels() {
        return Err(NOT_PLAIN);
    }
    let all = p.batch.saturating_mul(p.seqlen_q);
    let mut pairs = pairs(q).filter(|pair| pair.iter().all(|e| q.runs(e))).peekable();
    let has_hopper = pairs.peek().is_some_and(|[_, many]| many.isa == Isa::Sm90a);
    let mut reason = NO_KERNEL;
    let mut pays = |[few, many]: &Pair| {
        let only_few = p.seqlen_q <= most(p, few) as usize;
        let has_few = only_few || p.batch > 1 && rows < all;
        let is_faster = match many.isa {
            Isa::Sm90a => p.seqlen_k >= LEAST_KEYS && (rows <= all / 2 || only_few),
            Isa::Sm80 if on.arch() != 90 || !has_hopper => true,
            Isa::Sm80 => rows <= p.batch.saturating_mul(MOSTLY_FEW),
        };
        reason = if has_few { SLOWER } else { ALL_MANY };
        has_few && is_faster
    };
    let pair = pairs.find(&mut pays);
    match pair.map(|pair| Choice::new(pair, MIXED)).ok_or(reason)? {
        _ if !q.scratch.allows(numbers_bytes(p.batch as u32)) => Err(NO_ROOM),
        choice => Ok(choice),
    }
}

/// Returns the kernels of a mixed batch. The caller named the decode kernel `few`.
///
/// # Errors
/// Returns [`Error::Invalid`] if the kernels do not solve the problem, or [`Error::Unsupported`] if the
/// device cannot run them, or if the request fixes the number of splits: the prefill kernel makes none.
fn named(q: &Query<'_>, few: &'static AttnInfo) -> Result<Choice<Pair>, Error> {
    let (p, on) = (q.problem, q.on);
    reads_cache(few, p)?;
    needs_no_splits(p)?;
    let pairs = || pairs(q).filter(|[own, _]| *own == few && p.varlen.is_some());
    let pair = pairs().find(|pair| pair.iter().all(|e| q.runs(e))).or_else(|| pairs().next());
    let pair = pair.ok_or_else(|| {
        let group = p.heads_q / p.heads_k;
        let expected = match p.varlen {
            None => "it needs varlen queries, and the request has equal query counts".to_owned(),
            Some(_) if !p.is_of_mixed_kernels() => format!(
                "it takes no slopes and bias, and at most {MAX_SEQUENCES} sequences, and the request is {p}"
            ),
            Some(_) if !few.covers(q.kind.mask) => {
                format!("it is a kernel for mask {}, and the request is {p}", few.mask.name())
            }
            Some(_) if p.sinks => format!("no prefill kernel beside it takes sinks, and the request is {p}"),
            Some(_) if group > few.tile_m as usize => {
                let most = few.tile_m;
                format!("it takes at most {most} query heads per key head, and the request has {group}")
            }
            Some(_) => format!("it must be a kernel for {}", p.named_columns()),
        };
        let expected = format_args!("{expected}: `ferroflash kernels --family mixed`");
        Error::invalid("config", few.contract.symbol, expected)
    })?;
    pair.iter().try_for_each(|e| on.runs(&e.contract))?;
    Ok(Choice::new(pair, ASKED))
}
