//! Conditions under which one of Hopper's kernels solves a problem whose mask or scores have parameters.
use super::Query;
use super::variant::tiles;
use crate::{AttnInfo, Capabilities, MaskKind};
use spec::{HOPPER_VARIANTS, PLANNED, ScoreKinds};

/// A table line: these kernels run from a mean of `keys` keys and one tile per SM on.
struct Line {
    is_meant: fn(&AttnInfo) -> bool,
    keys: usize,
    reason: &'static str,
}

/// The first line with a kernel for the problem decides. Minimums of keys are those of kernels without the
/// mask or the scores (`hopper.rs`).
const TABLE: &[Line] = &[
    Line {
        is_meant: |e| e.tile_m == 192,
        keys: 4096,
        reason: "warpgroups and TMA, with this mask and these scores; long: three warpgroups of queries read \
                 keys and values less often than two",
    },
    Line {
        is_meant: |e| e.scores.sink,
        keys: 1024,
        reason: "warpgroups and TMA, with sinks; long sequences that fill the device",
    },
    Line {
        is_meant: |e| e.scores.alibi,
        keys: 1024,
        reason: "warpgroups and TMA, with slopes under a causal mask; long sequences that fill the device",
    },
    Line {
        is_meant: |e| matches!(e.mask, MaskKind::Prefix | MaskKind::Chunked),
        keys: 1024,
        reason: "warpgroups and TMA, with this mask; long sequences that fill the device",
    },
    Line {
        is_meant: |e| e.mask == MaskKind::Own || e.scores.own,
        keys: 1024,
        reason: "warpgroups and TMA, of the caller's variant; long sequences that fill the device",
    },
    Line {
        is_meant: |_| true,
        keys: 1024,
        reason: "warpgroups and TMA, with this mask and these scores; long sequences that fill the device",
    },
];

/// The kernel of the first matching line, and the reason. `kernels` solve the problem.
pub(super) fn choose(
    q: &Query<'_>,
    kernels: &[&'static AttnInfo],
) -> Option<(&'static AttnInfo, &'static str)> {
    let (p, on) = (q.problem, q.on);
    let keys = match (p.varlen, p.cache) {
        (None, None) => p.seqlen_k,
        _ => p.totals()[1] / p.batch,
    };
    TABLE.iter().filter(|line| keys >= line.keys).find_map(|line| {
        let runs = |e: &&&AttnInfo| fits(e, on) && tiles(p, e) >= u64::from(on.sms);
        let meant = kernels.iter().filter(|e| (line.is_meant)(e)).filter(runs);
        // This mask before a more general one.
        Some((*meant.min_by_key(|e| e.mask != p.mask_kind())?, line.reason))
    })
}

fn fits(e: &AttnInfo, on: &Capabilities) -> bool {
    e.has_maps() && e.contract.target.runs_on(on.arch()) && e.contract.smem_bytes <= on.smem_per_block
}

/// Whether a kernel's slopes are those of a problem of the table: slopes under a causal mask, without softcap.
pub(super) fn takes_slopes(e: &AttnInfo, q: &Query<'_>) -> bool {
    let p = q.problem;
    let scores = ScoreKinds { alibi: true, ..p.score_kinds() };
    p.variant.is_none() && p.has_causal_slopes() && e.mask == MaskKind::Causal && e.scores == scores
}

/// The kernel for a dense problem with slopes. Its head dim is that of the portable kernels.
pub(super) fn sloped(q: &Query<'_>) -> Option<(&'static AttnInfo, &'static str)> {
    let head_dim = PLANNED.iter().map(|e| e.head_dim).filter(|d| *d as usize >= q.problem.head_dim).min()?;
    let solves = |e: &&AttnInfo| takes_slopes(e, q) && (e.dtype, e.head_dim) == (q.problem.dtype, head_dim);
    choose(q, &HOPPER_VARIANTS.iter().filter(solves).collect::<Vec<_>>())
}
