//! The conditions of passes over shared prefixes: whether they would be right, whether they pay, and the
//! number of parts of a prefix.
use crate::problem::MAX_ROWS;
use crate::request::{AttentionRequest, Groups, KeysValues, KvScale, Mask, SharedPrefixes, Splits};
use crate::schedule::{Schedule, Scheduled};
use crate::{Capabilities, Problem};

/// The reason for passes over prefixes and over the rest.
pub(super) const SHARED: &str = "groups of sequences share prefixes: one pass over each prefix for all \
                                 queries of its group, and one over the rest of each sequence";
/// The reason for a single pass where two passes do not pay.
pub(super) const TOO_SHORT: &str = "shared prefixes save too few bytes for two passes: one pass over whole \
                                    sequences";
/// The reason for a single pass where the workspace is too small.
pub(super) const NO_ROOM: &str = "two passes over shared prefixes need a workspace (Scratch::Fastest states \
                                  its size): one pass over whole sequences";
/// The reason for a single pass where no kernel solves a part.
pub(super) const NO_KERNEL: &str = "no kernel takes all queries of a group, or the rest of a sequence, in \
                                    one pass: one pass over whole sequences";

/// Bytes that two passes must save, per SM. Two passes need one launch more, a second wave of latency, and
/// write and read a state of each row: about 7 us of an H200, in which each SM reads 210 KiB from memory, or
/// 500 KiB from the L2 cache. This number is an estimate; nobody has measured it.
const LEAST_BYTES: u64 = 384 << 10;
/// Minimum number of keys per part of a prefix.
const LEAST_KEYS: usize = 256;
/// Maximum number of parts of a prefix. The pass over the rest reads a state of each row per part.
const MOST_PARTS: usize = 8;

/// Returns the reason why two passes would be wrong for a valid request, if there is one.
pub(super) fn obstacle(r: &AttentionRequest<'_>, p: &Problem, config: Option<&str>) -> Option<&'static str> {
    let (left, right) = p.mask.sides();
    let by_sides = matches!(p.mask, Mask::Full | Mask::Causal | Mask::Window { .. });
    match () {
        () if config.is_some() => Some("the request names a kernel for whole sequences"),
        () if p.invariance.is_promised() => {
            Some("batch-invariant, and a prefix belongs to several sequences: one pass over whole sequences")
        }
        () if p.splits != Splits::Auto => Some(
            "the request states the splits of whole sequences: one pass over whole sequences, without shared \
             prefixes",
        ),
        () if p.varlen.is_some() => {
            Some("varlen queries: one pass over whole sequences, without shared prefixes")
        }
        () if !by_sides || left.is_some() || !matches!(right, None | Some(0)) => {
            Some("the mask hides keys of shared prefixes by position: one pass over whole sequences")
        }
        () if p.alibi || p.bias.is_some() || p.variant.is_some() => {
            Some("scores depend on the position in a shared prefix: one pass over whole sequences")
        }
        () if p.rows() > MAX_ROWS && p.latent().is_none() => Some(
            "more than 64 rows per key head share a key already: one pass over whole sequences, without \
             shared prefixes",
        ),
        () if has_varlen_groups(r) && p.latent().is_some() => Some(
            "latent caches need groups on the host (SharedPrefixes::equal): one pass over whole sequences",
        ),
        () if mixes_scales(r) => Some(
            "e4m3 scales per sequence need groups on the host (SharedPrefixes::equal): one pass over whole \
             sequences",
        ),
        () => None,
    }
}

fn has_varlen_groups(r: &AttentionRequest<'_>) -> bool {
    r.shared_prefixes.is_some_and(|prefixes| matches!(prefixes.groups, Groups::Varlen { .. }))
}

/// Returns whether the pass over prefixes would read scales of other sequences: scales have a stride from
/// sequence to sequence, and the host does not know the first sequence of a varlen group.
pub(super) fn mixes_scales(r: &AttentionRequest<'_>) -> bool {
    let KeysValues::Cache(kv) = &r.kv else { return false };
    let of_sequences = |scale: &KvScale| matches!(scale, KvScale::Device { strides, .. } if strides[0] != 0);
    has_varlen_groups(r) && kv.pages.scales.iter().any(of_sequences)
}

/// Returns whether two passes are faster than one pass: whether they save enough reads of keys and values.
pub(super) fn pays(prefixes: &SharedPrefixes, p: &Problem, on: &Capabilities) -> bool {
    let pages = match prefixes.groups {
        Groups::Equal { pages, .. } => pages,
        Groups::Varlen { prefix, .. } => prefix.columns,
    };
    let keys = pages.saturating_mul(p.cache.map_or(0, |cache| cache.page));
    let columns = p.head_dim + if p.latent().is_some() { 0 } else { p.head_dim_v };
    let key_bytes = (p.heads_k * columns * p.kv_dtype.bytes()) as u64;
    let saved = (p.batch.saturating_sub(prefixes.count()) as u64).saturating_mul(keys as u64);
    prefixes.always || saved.saturating_mul(key_bytes) >= LEAST_BYTES * u64::from(on.sms)
}

/// Returns the number of parts into which the pass cuts a prefix of `page` keys per page, so that the work
/// tiles of `pass` fill the device. Decode kernels split keys by themselves. Several groups have several
/// block tables, so that their prefixes stay whole.
pub(super) fn parts(prefixes: &SharedPrefixes, pass: &Scheduled, p: &Problem, on: &Capabilities) -> usize {
    let (Groups::Equal { count: 1, pages, .. }, Schedule::Tiles(_)) = (prefixes.groups, pass.schedule) else {
        return 1;
    };
    let page = p.cache.map_or(0, |cache| cache.page);
    let rows = Problem { batch: 1, seqlen_q: p.batch * p.seqlen_q, ..*p };
    let resident = u64::from(on.sms) * u64::from(on.blocks_per_sm(&pass.kernel.contract));
    let wanted = (resident / rows.tiles(pass.kernel.tile_m).max(1)) as usize;
    // The first lengths of the request stand for the lengths of the parts, so that there is one per part.
    let most = wanted.min(MOST_PARTS).min(p.batch).min(pages.saturating_mul(page) / LEAST_KEYS);
    (1..=most).rev().find(|parts| pages.is_multiple_of(*parts)).unwrap_or(1)
}
