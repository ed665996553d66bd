//! Conditions under which one of Hopper's kernels solves a problem whose mask or scores have parameters.
use super::{Query, tiles};
use crate::{AttnInfo, MaskKind, Problem};
use spec::{HOPPER_VARIANTS, PLANNED, ScoreKinds};

/// A table line: the reason for these kernels.
struct Line {
    is_meant: fn(&AttnInfo) -> bool,
    reason: &'static str,
}

/// The first line with a kernel for the problem decides.
const TABLE: &[Line] = &[
    Line {
        is_meant: |e| e.tile_m == 192,
        reason: "warpgroups and TMA, with this mask and these scores; long: three warpgroups of queries read \
                 keys and values less often than two",
    },
    Line {
        is_meant: |e| e.scores.bias.is_some(),
        reason: "warpgroups and TMA; the producer copies the bias beside keys; long sequences that fill the \
                 device",
    },
    Line {
        is_meant: |e| e.scores.alibi,
        reason: "warpgroups and TMA, with slopes under a causal mask; long sequences that fill the device",
    },
    Line {
        is_meant: |e| e.scores.sink,
        reason: "warpgroups and TMA, with sinks; long sequences that fill the device",
    },
    Line {
        is_meant: |e| e.mask == MaskKind::Chunked,
        reason: "warpgroups and TMA, with chunks; long sequences that fill the device",
    },
    Line {
        is_meant: |e| e.mask == MaskKind::Prefix,
        reason: "warpgroups and TMA, with a prefix; long sequences that fill the device",
    },
    Line {
        is_meant: |_| true,
        reason: "warpgroups and TMA, with this mask and these scores; long sequences that fill the device",
    },
];

/// Minimum of mean keys for a kernel. The minimum is equal to the minimum of the kernel without this mask and
/// these scores (`hopper.rs`).
const fn least_keys(e: &AttnInfo) -> usize {
    if e.tile_m == 192 { 4096 } else { 1024 }
}

/// Returns the kernel of the first matching line, and the reason. `kernels` solve the problem.
pub(super) fn choose(
    q: &Query<'_>,
    kernels: &[&'static AttnInfo],
) -> Option<(&'static AttnInfo, &'static str)> {
    let (p, on) = (q.problem, q.on);
    let runs = |e: &&&AttnInfo| {
        let fits = e.contract.target.runs_on(on.arch()) && e.contract.smem_bytes <= on.smem_per_block;
        e.has_maps() && fits && mean_keys(p) >= least_keys(e) && tiles(p, e) >= u64::from(on.sms)
    };
    TABLE.iter().find_map(|line| {
        let meant = kernels.iter().filter(|e| (line.is_meant)(e)).filter(runs);
        // A kernel with exactly this mask comes before a kernel with a more general mask.
        Some((*meant.min_by_key(|e| e.mask != p.mask_kind())?, line.reason))
    })
}

/// Returns the mean number of keys per sequence.
fn mean_keys(p: &Problem) -> usize {
    match (p.varlen, p.cache) {
        (None, None) => p.seqlen_k,
        _ => p.totals()[1] / p.batch,
    }
}

/// Returns whether a kernel with slopes solves a problem: the problem has slopes, a causal mask, and no
/// softcap.
pub(super) fn takes_slopes(e: &AttnInfo, p: &Problem) -> bool {
    let scores = ScoreKinds { alibi: true, ..p.score_kinds() };
    p.variant.is_none() && p.has_causal_slopes() && e.mask == MaskKind::Causal && e.scores == scores
}

/// Returns the kernel for a dense problem with slopes. The kernel has the head dim of the portable kernel.
pub(super) fn sloped(q: &Query<'_>) -> Option<(&'static AttnInfo, &'static str)> {
    let p = q.problem;
    let (_, columns) = super::columns(p, MaskKind::Causal, PLANNED).ok()?;
    let solves = |e: &&AttnInfo| takes_slopes(e, p) && (e.dtype, e.columns()) == (p.dtype, columns);
    choose(q, &HOPPER_VARIANTS.iter().filter(solves).collect::<Vec<_>>())
}
