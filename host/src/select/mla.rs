//! Selection of MLA decode kernels: few queries on a latent cache.
use super::hopper::NO_MAPS;
use super::{ASKED, Choice, Query};
use crate::request::Splits;
use crate::schedule::{Decode, row_blocks};
use crate::{AttnInfo, Error, Problem};
use core::cmp::Reverse;
use spec::{HOPPER_MLAS, MLAS};

const FEW: &str = "a latent cache, read once for keys and values: the smallest block that holds all rows of \
                   a latent head";
const SHORT: &str = "a latent cache, read once for keys and values: splits are short, and eight warps take \
                     less time for them than four";
const MANY: &str = "a latent cache, read once for keys and values: more rows than a block of this device \
                    holds, so that several blocks read the same keys";

const HOPPER: &str = "a latent cache, read once for keys and values: warpgroups and TMA for blocks of 64 \
                      rows, whose products take longer than their bytes with mma.sync";
const CHUNKED: &str = "a latent cache; batch-invariant splits (`Splits::Chunk`): one kernel for pages of all \
                       sizes";

const STATES: &str = "a latent cache, and states over other keys, which no Hopper kernel merges";

/// Returns whether the entry solves the problem.
fn solves(e: &AttnInfo, p: &Problem) -> bool {
    e.dtype == p.dtype && e.takes_columns(p.columns())
}

/// Returns the named entry, or the best one. The best entry has the fewest thread blocks, then the fewest
/// rows, then the most stages, except as [`splits_fill`] and [`splits_are_short`] say. For chunks, the choice
/// does not depend on the batch, so chunks are batch-invariant. Where this is a block of 64 rows, a Hopper
/// kernel replaces it if it takes the tensors.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or [`Error::Invalid`] if
/// the named kernel does not solve it.
pub(super) fn choose(q: &Query<'_>, config: Option<&str>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    if let Some(name) = config {
        let mut all = MLAS.iter().chain(HOPPER_MLAS);
        let entry = all.find(|e| e.contract.symbol == name && solves(e, p));
        let entry = entry.ok_or_else(|| {
            let expected = format_args!(
                "it must be a kernel for latent caches of {}: `ferroflash kernels --family mla`",
                p.dtype.name()
            );
            Error::invalid("config", name, expected)
        })?;
        return on.runs(&entry.contract).and(Ok(Choice::new(entry, ASKED)));
    }
    let portable = portable(q)?;
    let replaces =
        |e: &&AttnInfo| solves(e, p) && e.tile_m == portable.kernel.tile_m && on.runs(&e.contract).is_ok();
    let Some(entry) = HOPPER_MLAS.iter().find(replaces) else { return Ok(portable) };
    let takes = match p.splits {
        Splits::Chunk(_) => Err(CHUNKED),
        _ if q.merges_states => Err(STATES),
        _ if !on.tensor_maps => Err(NO_MAPS),
        _ => q.takes(entry),
    };
    Ok(match takes {
        Ok(()) => Choice { kernel: entry, reason: HOPPER, fallback: Some(portable.kernel) },
        Err(reason) => Choice { reason, ..portable },
    })
}

/// Whether each sequence gets at least four shares of the device. The splits are then short, and two thread
/// blocks of an SM hide each other's latency; longer work runs faster in one thread block with more stages
/// (H200, 16 heads: 8 x 32768 keys 94.5 us instead of 116.1, 128 x 1024 keys 63.9 us instead of 59.9). A few
/// sequences are excluded, because twice as many splits cost more to merge than they gain.
///
/// Only Hopper is measured. An A100 has half of an H200's bandwidth per SM, so that it waits for bytes.
fn splits_fill(q: &Query<'_>) -> bool {
    let work = q.problem.batch * q.problem.heads_k;
    let measured = q.on.compute_capability == (9, 0) && q.problem.splits == Splits::Auto;
    measured && (8..=q.on.sms as usize / 4).contains(&work)
}

/// Whether an SM's share of all keys is short. The start and the end of a split then cost more than its keys,
/// and eight warps take less time for them than four, even if half of their rows are padding. Two stages
/// suffice. Time of `32x32`, divided by the time of the choice without this rule (16 heads, one query):
///
/// | keys per SM | sequences x keys | H100 | H200 |
/// |---|---|---|---|
/// | 31 | 1 x 4096 | 1.02 | |
/// | 62 | 8 x 1024 | 1.00 | |
/// | 124 | 2 x 8192, 4 x 4096, 8 x 2048, 16 x 1024 | 0.93, 0.93, 1.00, 0.98 | |
/// | 248 | 1 x 32768, 4 x 8192, 8 x 4096, 16 x 2048 | 0.92, 0.92, 0.89, 0.92 | 0.94 and 0.95 (first, third) |
/// | 372 | 12 x 4096 | 0.91 | |
/// | 496 | 8 x 8192, 16 x 4096, 32 x 2048, 64 x 1024 | 0.91, 0.95, 0.95, 0.99 | |
/// | 745 | 24 x 4096, 48 x 2048 | 0.98, 1.09 | |
/// | 993 | 16 x 8192, 32 x 4096 | 0.97, 0.97 | 1.08, 1.08 |
/// | 1986 | 8 x 32768 | 1.01 | 1.16 |
fn splits_are_short(q: &Query<'_>) -> bool {
    let (p, sequences) = (q.problem, q.problem.batch.saturating_mul(q.problem.heads_k));
    let keys = sequences.saturating_mul(p.seqlen_k) / q.on.sms.max(1) as usize;
    let measured = q.on.compute_capability == (9, 0) && p.splits == Splits::Auto;
    measured && p.rows() <= 16 && sequences <= 64 && (64..=512).contains(&keys)
}

/// Returns the best portable entry.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no entry solves the problem on this device.
fn portable(q: &Query<'_>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    let fitting = || MLAS.iter().filter(|e| solves(e, p));
    let running = || fitting().filter(|e| on.runs(&e.contract).is_ok());
    let most_warps = |e: &&AttnInfo| (row_blocks(e, p), Reverse(e.contract.threads), e.tile_m, e.stages);
    let splits = |e: &&AttnInfo| {
        Decode::new(p, e, on, |bytes| q.scratch.allows(bytes)).is_ok_and(|splits| !splits.lacks_workspace)
    };
    let short = splits_are_short(q).then(|| running().min_by_key(most_warps)).flatten();
    if let Some(entry) = short.filter(splits) {
        return Ok(Choice::new(entry, SHORT));
    }
    let blocks_per_sm = |e: &AttnInfo| if splits_fill(q) { on.blocks_per_sm(&e.contract) } else { 0 };
    let size = |e: &&AttnInfo| (row_blocks(e, p), e.tile_m, Reverse(blocks_per_sm(e)), Reverse(e.stages));
    let Some(entry) = running().min_by_key(size).or_else(|| fitting().min_by_key(size)) else {
        return Err(Error::unsupported(
            format_args!("{p} on a latent cache"),
            "no kernel has these numbers of columns",
        ));
    };
    on.runs(&entry.contract)?;
    Ok(Choice::new(entry, if row_blocks(entry, p) == 1 { FEW } else { MANY }))
}
