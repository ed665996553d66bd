//! Conditions of rules: whether a kernel pays for a problem on a device.
use super::Query;
use super::rule::{Case, fills_device, tile};
use crate::request::Splits;
use crate::schedule::{Decode, row_blocks};
use crate::{AttnInfo, MaskKind};
use core::cmp::Reverse;
use spec::Class;

/// Returns whether three warpgroups of queries do little more work on the busiest SM than two. Tiles of 192
/// queries take fewer rounds, but the last round may be mostly idle: 2 x 16 heads of 1024 are 192 tiles of
/// 192 queries, two rounds for 132 SMs, and 256 tiles of 128, also two. The shapes in the table of [`THREE`]
/// have 103 %. Shapes of 113 % gained 2 to 6 % at head dim 80, before tiles of 192 had products of 80
/// columns. With them, tiles of 192 take 0.84 times as long per query as those of 128 (4 x 4096).
pub(super) fn wastes_little(case: &Case<'_>) -> bool {
    let (p, sms) = (case.q.problem, u64::from(case.q.on.sms).max(1));
    let work = |tile_m: u32| p.tiles(tile_m).div_ceil(sms).saturating_mul(tile_m.into());
    let most = match p.head_dim {
        96.. => 105,
        _ => 118,
    };
    work(192).saturating_mul(100) <= work(128).saturating_mul(most)
}

pub(super) fn is_only(case: &Case<'_>) -> bool {
    case.kernels.iter().filter(|e| !e.splits).count() == 1
}

pub(super) fn is_smallest(case: &Case<'_>, e: &AttnInfo) -> bool {
    case.kernels.iter().filter(|e| !e.splits).min_by_key(|e| tile(e)) == Some(&e)
}

/// Returns whether a kernel has the largest tile with which its blocks fill the device.
pub(super) fn is_largest(case: &Case<'_>, e: &AttnInfo) -> bool {
    let fills = |e: &&&AttnInfo| !e.splits && fills_device(case.q, e);
    case.kernels.iter().filter(fills).max_by_key(|e| tile(e)) == Some(&e)
}

pub(super) fn is_general(case: &Case<'_>, e: &AttnInfo) -> bool {
    e.mask != case.q.kind.mask && !case.q.is_special(e)
}

/// Returns whether sequences are long enough for one of Hopper's kernels with parameters, and fill the
/// device.
pub(super) fn is_long(case: &Case<'_>, e: &AttnInfo) -> bool {
    let p = case.q.problem;
    let keys = if case.q.kind.class() == Class::Dense { p.seqlen_k } else { p.totals()[1] / p.batch };
    keys >= if e.tile_m == 192 { 4096 } else { 1024 } && case.q.tiles(e) >= u64::from(case.q.on.sms)
}

/// Returns whether varlen sequences want the larger tile: unless the smaller one covers the mean sequence, or
/// there are too few larger tiles for the device. The larger tile takes 0.57 to 0.9 times as long as the
/// smaller tile at D = 128, and 0.69 to 1.1 times at D = 64. If the smaller tile covers a whole sequence, the
/// larger tile takes 1.1 to 1.3 times as long. (H200, sequences of 64 to 1024 rows, equal and uniformly
/// random.)
pub(super) fn are_long(case: &Case<'_>, e: &AttnInfo) -> bool {
    let (p, on) = (case.q.problem, case.q.on);
    let rows = p.totals()[0];
    let tiles = rows.div_ceil(e.tile_m as usize) as u64 * p.heads_q as u64;
    let resident = u64::from(on.sms) * u64::from(on.blocks_per_sm(&e.contract));
    let smaller = case.kernels.last().map_or(0, |smaller| smaller.tile_m as usize);
    case.kernels.first() == Some(&e) && rows / p.batch > smaller && tiles >= resident
}

/// Pairs of a minimum mean number of queries and a minimum mean number of keys per sequence. A batch must
/// reach both numbers of at least one pair.
pub(super) type Least = &'static [[usize; 2]];

/// Returns the minimum for varlen tensors: one tile of queries and keys, or few queries on many keys
/// (docs/selection.md).
pub(super) const fn least_varlen(e: &AttnInfo) -> Least {
    match (e.mask, e.head_dim) {
        (MaskKind::Full | MaskKind::Causal, 128) => &[[128, 128], [1, 1024]],
        _ => &[[128, 128]],
    }
}

/// The minimum for kernels that keep the largest scores. Instead of them, a portable kernel rescales O with
/// every new maximum, or a kernel of statistics computes all scores again, so that they pay early.
pub(super) const LEAST_OF_MAXIMA: Least = &[[66, 128], [1, 1024]];

/// Returns the mean queries and keys from which Hopper's paged kernel is faster (docs/selection.md). The host
/// often knows only the maximum number of keys.
pub(super) const fn least_paged(e: &AttnInfo) -> Least {
    match (e.mask, e.head_dim) {
        (MaskKind::Local, _) => &[[128, 512]],
        (_, 128) => &[[1, 128]],
        _ => &[[128, 384]],
    }
}

/// Returns whether mean queries and mean keys reach the minimum, and every SM has a tile. If all tiles are
/// equally long, tiles for 15 of 16 SMs are enough: 128 tiles for 132 SMs.
pub(super) fn reaches(case: &Case<'_>, e: &AttnInfo, least: Least) -> bool {
    let (p, sms) = (case.q.problem, u64::from(case.q.on.sms));
    let [queries, keys] = p.totals().map(|all| all / p.batch);
    let keys_in_all = p.cache.and_then(|cache| cache.total_k);
    let is_even = p.varlen.is_none() && keys_in_all == Some(p.batch.saturating_mul(p.seqlen_k));
    let enough = if is_even { sms * 15 / 16 } else { sms };
    least.iter().any(|least| queries >= least[0] && keys >= least[1]) && case.q.tiles(e) >= enough
}

/// Returns whether a larger kernel would hold all rows in one thread block.
pub(super) fn fit_one_block(case: &Case<'_>, e: &AttnInfo) -> bool {
    let larger = |other: &&&AttnInfo| other.tile_m > e.tile_m && other.head_dim == e.head_dim;
    case.all.iter().filter(larger).any(|other| row_blocks(other, case.q.problem) == 1)
}

/// Returns the portable kernel for short splits, if the splits are short and have their workspace.
pub(super) fn of_short_splits(q: &Query<'_>, all: &[&'static AttnInfo]) -> Option<&'static AttnInfo> {
    let running = all.iter().copied().filter(|e| !e.is_hoppers() && q.runs(e));
    let most_warps =
        |e: &&AttnInfo| (row_blocks(e, q.problem), Reverse(e.contract.threads), e.tile_m, e.stages);
    let splits = |e: &&AttnInfo| {
        let splits = Decode::new(q.problem, e, q.on, |bytes| q.scratch.allows(bytes));
        splits.is_ok_and(|splits| !splits.lacks_workspace)
    };
    splits_are_short(q).then(|| running.min_by_key(most_warps)).flatten().filter(splits)
}

/// Whether an SM's share of all keys is short. The start and the end of a split then cost more than its keys,
/// and eight warps take less time for them than four, even if half of their rows are padding. Two stages
/// suffice. (H100 and H200: 0.89 to 1.00 of the time; docs/selection.md.)
fn splits_are_short(q: &Query<'_>) -> bool {
    let (p, sequences) = (q.problem, q.problem.batch.saturating_mul(q.problem.heads_k));
    let keys = sequences.saturating_mul(p.seqlen_k) / q.on.sms.max(1) as usize;
    has_measured_splits(q) && p.rows() <= 16 && sequences <= 64 && (64..=512).contains(&keys)
}

/// Returns whether splits of a latent cache were measured: on Hopper only. An A100 has half of an H200's
/// bandwidth per SM, so that it waits for bytes.
pub(super) fn has_measured_splits(q: &Query<'_>) -> bool {
    q.on.compute_capability == (9, 0) && q.problem.decode_splits() == Splits::Auto
}
