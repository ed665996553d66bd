//! Selection for mixed batches: varlen queries on a KV cache. Some sequences have few queries, others have
//! many.
use super::{ASKED, Choice, variant};
use crate::request::Splits;
use crate::schedule::few_of;
use crate::{AttnInfo, Capabilities, Error, Problem};
use spec::{MAX_SEQUENCES, MIXED_MANY};

const MIXED: &str = "sequences of few and of many queries: a decode kernel takes the few, work tiles take \
                     the many, in one launch";

/// Maximum of the mean queries per sequence for which a batch does not use Hopper's prefill kernel, because
/// such a batch consists mostly of single queries. This number is an estimate; nobody has measured it.
const MOSTLY_FEW: usize = 32;

/// Returns the prefill kernel for a mixed batch and the reason for it, if the batch may have sequences of few
/// queries. A decode kernel reads the keys of these sequences once for all query heads of a key head. The
/// batch decides which sequences the decode kernel takes, so batch-invariant splits (`Splits::Chunk`) leave
/// all sequences to prefill kernels.
pub(super) fn choose(p: &Problem, on: &Capabilities) -> Option<(&'static AttnInfo, &'static str)> {
    let [rows, _] = p.varlen?;
    let kernel = many(p).find(|kernel| on.runs(&kernel.contract).is_ok())?;
    let (decode, most) = few_of(p, kernel)?;
    let has_few = p.seqlen_q <= most as usize || p.batch > 1 && rows < p.batch.saturating_mul(p.seqlen_q);
    let pays =
        on.arch() < 90 || kernel.kv_dtype != kernel.dtype || rows <= p.batch.saturating_mul(MOSTLY_FEW);
    let runs = on.runs(&decode.contract).is_ok();
    (has_few && pays && runs && p.splits == Splits::Auto).then_some((kernel, MIXED))
}

/// Returns the two kernels of a mixed batch. The caller named the decode kernel `few`.
///
/// # Errors
/// Returns [`Error::Invalid`] if the kernels do not solve the problem, or [`Error::Unsupported`] if the
/// device cannot run them.
pub(super) fn named(p: &Problem, few: &AttnInfo, on: &Capabilities) -> Result<Choice, Error> {
    let kernel = many(p).find(|kernel| few_of(p, kernel).is_some_and(|(own, _)| own == few));
    let kernel = kernel.filter(|_| p.varlen.is_some()).ok_or_else(|| {
        let expected = format_args!(
            "it must be a kernel for {}, {} and this mask, on a cache of this type, without sinks, \
             slopes or bias, for varlen queries with at most {} query heads per key head: `ferroflash \
             kernels --family mixed`",
            p.dtype.name(),
            p.named_columns(),
            few.tile_m
        );
        Error::invalid("config", few.contract.symbol, expected)
    })?;
    on.runs(&few.contract)?;
    on.runs(&kernel.contract)?;
    Ok(Choice::new(kernel, ASKED))
}

/// Returns the prefill kernels for a mixed batch of these dtypes, head dim and mask, in order of
/// preference.
fn many(p: &Problem) -> impl Iterator<Item = &'static AttnInfo> {
    let is_plain = !(p.alibi || p.sinks) && p.bias.is_none() && p.batch <= MAX_SEQUENCES as usize;
    let solves = move |e: &&AttnInfo| {
        is_plain
            && p.cache.is_some_and(|cache| [e.dtype, e.kv_dtype] == [p.dtype, cache.dtype])
            && p.has_columns_for(e)
            && variant::covers(e.mask, p.mask_kind(), true)
    };
    MIXED_MANY.iter().filter(solves)
}
