//! Selection for varlen problems.
use super::hopper::{Answer, NO_MAPS};
use super::{Choice, Query};
use crate::{AttnInfo, Capabilities, Error, MaskKind, Problem};
use spec::{Contract, HOPPERS_PACKED, PACKED};

const HOPPER: &str = "warpgroups and TMA; sequences of a tile or more, or few queries on many keys, fill \
                      the device";
const LARGE: &str = "sequences of several tiles that fill the device: larger tiles read keys and values less \
                     often";
const SMALL: &str = "short sequences, or few rows for this device: smaller tiles leave fewer SMs idle";
const ONLY: &str = "the only varlen kernel of this dtype, head dim and mask that fits the device";
const SHORT: &str = "too few queries or keys per sequence, or too few tiles for this device, to pay for a \
                     Hopper kernel: portable work tiles per query head";

/// Returns Hopper's kernel if the sequences' mean queries and keys are long enough and each SM has a tile;
/// otherwise returns a portable kernel.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel fits the device.
pub(super) fn choose(q: &Query<'_>, mask: MaskKind) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    let (portable, reason) = portable(p, mask, on)?;
    let entry = hoppers(p, mask, HOPPERS_PACKED, portable, on);
    let takes = |entry: &AttnInfo| q.takes(entry).and(Ok(HOPPER));
    let least = least(mask, entry.map_or(0, |entry| entry.head_dim));
    Ok(match answer(entry, least, p, on, takes) {
        Answer::Taken(kernel, reason) => Choice { fallback: Some(portable), ..Choice::new(kernel, reason) },
        Answer::Refused(reason) => Choice::new(portable, reason),
        Answer::Slower(_) | Answer::Portable => Choice::new(portable, reason),
    })
}

/// Returns the larger tile, unless the smaller one covers the mean sequence, or there are too few larger
/// tiles for the device.
pub(super) fn portable(
    p: &Problem,
    mask: MaskKind,
    on: &Capabilities,
) -> Result<(&'static AttnInfo, &'static str), Error> {
    let (of_mask, columns) = super::columns(p, mask, PACKED)?;
    let solves = |e: &&AttnInfo| (e.dtype, e.mask, e.columns()) == (p.dtype, of_mask, columns);
    let mut candidates = PACKED.iter().filter(solves).filter(|e| on.runs(&e.contract).is_ok());
    let Some(first) = candidates.next() else {
        let (dtype, mask) = (p.dtype.name(), mask.name());
        let feature = format_args!("varlen {dtype} {} {mask} on {}", p.named_columns(), on.name);
        let reason = format_args!(
            "no varlen kernel fits into its {} bytes of shared memory per block",
            on.smem_per_block
        );
        return Err(Error::unsupported(feature, reason));
    };
    let Some(second) = candidates.next() else {
        return Ok((first, if of_mask == mask { ONLY } else { super::GENERAL }));
    };
    let [rows, _] = p.totals();
    let tiles = rows.div_ceil(first.tile_m as usize) as u64 * p.heads_q as u64;
    let resident = u64::from(on.sms) * u64::from(on.blocks_per_sm(&first.contract));
    // The larger tile takes 0.57 to 0.9 times as long as the smaller tile at D = 128, and 0.69 to 1.1 times
    // at D = 64. If the smaller tile covers a whole sequence, the larger tile takes 1.1 to 1.3 times as long.
    // (H200, sequences of 64 to 1024 rows, equal and uniformly random.)
    let is_long = rows / p.batch > second.tile_m as usize && tiles >= resident;
    Ok(if is_long { (first, LARGE) } else { (second, SMALL) })
}

/// Pairs of a minimum mean number of queries and a minimum mean number of keys per sequence. A batch must
/// reach both numbers of at least one pair.
pub(super) type Least = &'static [[usize; 2]];

/// Returns the minimum for varlen tensors: one tile of queries and keys, or few queries on many keys.
/// Portable kernels take longer by these factors (H200, f16, 16 to 256 sequences; other head dims were not
/// measured):
///
/// | sequences | factor |
/// |---|---|
/// | of 128, 256 and 384 | 1.16 to 1.87 |
/// | of 128 | 1.16 to 1.54 |
/// | 128 single queries beside a prompt of 1536 | 1.19 |
/// | 16 queries on 2048 keys | 1.26 |
/// | 16 queries on 512 keys | 0.90 |
const fn least(mask: MaskKind, head_dim: u32) -> Least {
    match (mask, head_dim) {
        (MaskKind::Full | MaskKind::Causal, 128) => &[[128, 128], [1, 1024]],
        _ => &[[128, 128]],
    }
}

/// Returns the first of Hopper's kernels with this mask and the smallest columns for the problem that the
/// device can run. The kernel reads keys of the type that `portable` reads. If `portable` has fewer columns
/// of K, Hopper's kernels would compute more.
pub(super) fn hoppers(
    p: &Problem,
    mask: MaskKind,
    kernels: &'static [AttnInfo],
    portable: &AttnInfo,
    on: &Capabilities,
) -> Option<&'static AttnInfo> {
    let columns = super::smallest(p, mask, kernels).filter(|columns| columns[0] <= portable.head_dim)?;
    kernels.iter().find(|e| {
        let Contract { target, smem_bytes, .. } = e.contract;
        let is_meant = (e.dtype, e.kv_dtype, e.mask) == (p.dtype, portable.kv_dtype, mask);
        is_meant && e.columns() == columns && target.runs_on(on.arch()) && smem_bytes <= on.smem_per_block
    })
}

/// Returns the answer for one of Hopper's kernels. The planner takes the kernel if mean queries and mean keys
/// reach the minimum, every SM has a tile, and the kernel `takes` the tensors. If all tiles are equally long,
/// tiles for 15 of 16 SMs are enough: 128 tiles for 132 SMs.
pub(super) fn answer(
    entry: Option<&'static AttnInfo>,
    least: Least,
    p: &Problem,
    on: &Capabilities,
    takes: impl FnOnce(&AttnInfo) -> Result<&'static str, &'static str>,
) -> Answer {
    let Some(entry) = entry.filter(|_| !p.alibi) else { return Answer::Portable };
    let [queries, keys] = p.totals();
    // Every sequence has at least one tile.
    let tiles = queries.div_ceil(entry.tile_m as usize).max(p.batch).saturating_mul(p.heads_q);
    let [queries, keys] = [queries, keys].map(|all| all / p.batch);
    let is_long = least.iter().any(|least| queries >= least[0] && keys >= least[1]);
    let keys_in_all = p.cache.and_then(|cache| cache.total_k);
    let is_even = p.varlen.is_none() && keys_in_all == Some(p.batch.saturating_mul(p.seqlen_k));
    let enough = if is_even { on.sms as usize * 15 / 16 } else { on.sms as usize };
    if !is_long || tiles < enough {
        return Answer::Slower(SHORT);
    }
    if !on.tensor_maps {
        return Answer::Refused(NO_MAPS);
    }
    match takes(entry) {
        Ok(reason) => Answer::Taken(entry, reason),
        Err(reason) => Answer::Refused(reason),
    }
}
