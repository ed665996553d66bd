//! Conditions under which one of Hopper's kernels solves a dense problem on a device with Hopper's
//! instructions.
use super::{Query, hopper_variant};
use crate::schedule::Split;
use crate::{AttnInfo, Capabilities, MaskKind, Problem};
use spec::{HOPPER_VARIANTS, HOPPERS, PLANNED};

const FULL: &[MaskKind] = &[MaskKind::Full];
const CAUSAL: &[MaskKind] = &[MaskKind::Causal];
const LOCAL: &[MaskKind] = &[MaskKind::Local];

/// A table line: the tile to select for these problems.
struct Line {
    /// The kernel's maxima of columns: of K and of V.
    columns: [u32; 2],
    masks: &'static [MaskKind],
    tile_m: u32,
    /// Minimum number of keys.
    keys: usize,
    /// Minimum number of queries.
    queries: usize,
    /// Minimum number of tiles per 100 SMs.
    tiles_per_100_sms: u64,
    /// Whether several thread blocks share a tile's keys, which needs a workspace.
    splits: bool,
    /// Whether the line holds only for head dims whose rows begin inside 32-byte sectors of memory.
    within_sectors: bool,
    /// The most work on the busiest SM, by head dim, in percent of the work with tiles of 128 queries.
    most_work: fn(usize) -> u64,
    reason: &'static str,
}

impl Line {
    /// Returns a line for every mask. The line holds from 1024 keys and one tile per SM on: an SM holds one
    /// block, so a tile must be long enough to pay for its prologue.
    const fn new(head_dim: u32, tile_m: u32, reason: &'static str) -> Self {
        let masks = &[MaskKind::Full, MaskKind::Causal, MaskKind::Local];
        Line {
            columns: [head_dim; 2],
            masks,
            tile_m,
            keys: 1024,
            queries: 1,
            tiles_per_100_sms: 100,
            splits: false,
            within_sectors: false,
            most_work: |_| u64::MAX,
            reason,
        }
    }

    /// Returns a line for shorter problems. The line needs at least this number of keys, more than half a
    /// tile of queries, and tiles for this share of the SMs. With fewer tiles, smaller tiles distribute
    /// better over the SMs.
    const fn short(head_dim: u32, keys: usize, tiles_per_100_sms: u64) -> Self {
        Line { keys, queries: 66, tiles_per_100_sms, ..Line::new(head_dim, 128, SHORT) }
    }

    /// Returns a line for few queries on many keys. Splits distribute the work over the SMs more evenly than
    /// whole tiles do.
    const fn split(head_dim: u32) -> Self {
        let line = Line::new(head_dim, 128, SPLITS).only(DIVIDED).with_keys(2048);
        Line { tiles_per_100_sms: 0, splits: true, ..line }
    }

    /// Returns a line for few queries, if splits do not pay or the workspace is too small.
    const fn few(head_dim: u32) -> Self {
        Line { tiles_per_100_sms: 75, ..Line::new(head_dim, 128, FEW) }.with_keys(2048)
    }

    const fn with_values(self, head_dim_v: u32) -> Self {
        Line { columns: [self.columns[0], head_dim_v], ..self }
    }

    const fn with_keys(self, keys: usize) -> Self {
        Line { keys, ..self }
    }

    /// Returns the line for three warpgroups of queries at head dims 72 to 96.
    const fn three() -> Self {
        Line { most_work, ..Line::new(96, 192, THREE) }
    }

    /// Returns the line for head dims whose rows begin inside 32-byte sectors. It needs this number of
    /// tiles per 100 SMs.
    const fn within_sectors(self, tiles_per_100_sms: u64) -> Self {
        Line { within_sectors: true, tiles_per_100_sms, ..self }
    }

    const fn only(self, masks: &'static [MaskKind]) -> Self {
        Line { masks, ..self }
    }
}

/// Masks of the kernels with split-KV.
const DIVIDED: &[MaskKind] = &[MaskKind::Full, MaskKind::Causal];

/// The first matching line decides. If no line matches, a portable kernel runs: with few tiles, SMs would
/// idle (8 heads of 512 are such a problem).
#[rustfmt::skip]
const TABLE: &[Line] = &[
    Line::new(64, 192, "warpgroups and TMA; three warpgroups of queries read keys and values \
        less often than two (H200: 1.2x cuDNN)").only(FULL),
    Line::new(64, 192, "warpgroups and TMA; long and causal: three warpgroups of queries (H200: \
        1.2x cuDNN at 8192)").only(CAUSAL).with_keys(4096),
    Line::new(64, 128, "warpgroups and TMA (H200: 1.1x cuDNN)"),
    Line::three().only(FULL),
    Line::three().only(CAUSAL).with_keys(2048).within_sectors(400),
    Line::new(96, 128, "warpgroups and TMA (H200: 1.3 to 1.6x cuDNN)"),
    Line::new(128, 128, "warpgroups and TMA (H200: 1.2 to 1.4x cuDNN)"),
    Line::new(192, 128, "warpgroups and TMA"),
    Line::new(192, 128, "warpgroups and TMA; values of 128 columns").with_values(128).only(DIVIDED),
    Line::new(256, 128, "warpgroups and TMA"),
    Line::short(64, 66, 120).only(DIVIDED),
    Line::short(64, 512, 95).only(DIVIDED),
    Line::short(64, 128, 70).only(LOCAL),
    Line::short(96, 128, 95).only(DIVIDED),
    Line::short(128, 66, 70).only(DIVIDED),
    Line::short(128, 256, 70).only(LOCAL),
    Line::short(192, 128, 190).only(DIVIDED),
    Line::short(192, 256, 95).only(DIVIDED),
    Line::short(192, 128, 190).with_values(128).only(DIVIDED),
    Line::short(192, 256, 95).with_values(128).only(DIVIDED),
    Line::short(256, 128, 190).only(DIVIDED),
    Line::short(256, 256, 95).only(DIVIDED),
    Line::split(64),
    Line::split(128),
    Line::few(64),
    Line::short(96, 128, 45).only(DIVIDED),
    Line::short(128, 512, 45).only(DIVIDED),
    Line::short(192, 512, 45).only(DIVIDED),
    Line::short(256, 512, 45).only(DIVIDED),
];

const SPLITS: &str = "warpgroups and TMA; split-KV for few queries on many keys: several thread blocks per \
                      128 queries, each with a split of the keys";
/// Measured on an H200 (f16, 72 to 1024 keys, L2 cold, graphs): docs/performance-log.md, "Short problems".
const SHORT: &str = "warpgroups and TMA; a short problem with tiles for enough SMs (H200: 1.0 to 2.0x \
                     the portable kernel, 1.2x cuDNN)";
const FEW: &str = "warpgroups and TMA; few queries on many keys, with enough tiles to keep most \
                   SMs busy";

/// The L2 cache limits kernels of head dims 72 to 96: three warpgroups of queries read keys and values less
/// often than two. Measured on an H100 (f16, 4 x 16 heads of 4096 keys, us; cuDNN in the same run):
///
/// | head dim, mask | two warpgroups | three | cuDNN |
/// |---|---|---|---|
/// | 72, full | 918 | 789 | 879 |
/// | 80, full | 708 | 634 | 897 |
/// | 88, full | 1025 | 762 | 981 |
/// | 96, full | 707 | 669 | 923 |
/// | 72, causal | 500 | 466 | 538 |
/// | 80, causal | 394 | 395 | 534 |
/// | 88, causal | 547 | 448 | 566 |
/// | 96, causal | 370 | 393 | 553 |
///
/// Causal problems of head dim 72 with fewer than four tiles per SM lose up to 4 %.
const THREE: &str = "warpgroups and TMA; three warpgroups of queries read keys and values less often than \
                     two (H100: 1.05 to 1.34x two warpgroups)";

/// How much more work three warpgroups of queries may do on the busiest SM, in percent of the work of two,
/// before two are faster. Tiles of 192 queries take fewer rounds, but the last round may be mostly idle: 2 x
/// 16 heads of 1024 are 192 tiles of 192 queries, two rounds for 132 SMs, and 256 tiles of 128, also two. The
/// shapes in the table of [`THREE`] have 103 %. Shapes of 113 % gained 2 to 6 % at head dim 80.
const fn most_work(head_dim: usize) -> u64 {
    match head_dim {
        96.. => 105,
        80 => 113,
        _ => 118,
    }
}

/// The table's answer for a problem.
pub(super) enum Answer {
    /// A Hopper kernel, with the reason for it.
    Taken(&'static AttnInfo, &'static str),
    /// A Hopper kernel matches, but tensors or driver do not permit it.
    Refused(&'static str),
    /// A Hopper kernel matches, but a portable kernel is faster, with the reason.
    Slower(&'static str),
    /// No Hopper kernel matches; the portable kernel's reason applies.
    Portable,
}

pub(super) const NO_MAPS: &str = "the driver is older than CUDA 12.3, which kernels with tensor maps need";

/// Returns whether one of Hopper's kernels solves a dense problem.
pub(super) fn dense(q: &Query<'_>, mask: MaskKind) -> Answer {
    let found = match q.problem.alibi {
        true => hopper_variant::sloped(q),
        false => chosen(q, mask).map(|(entry, line)| (entry, line.reason)),
    };
    let Some((entry, reason)) = found else { return Answer::Portable };
    if !q.on.tensor_maps {
        return Answer::Refused(NO_MAPS);
    }
    match q.takes(entry) {
        Ok(()) => Answer::Taken(entry, reason),
        Err(reason) => Answer::Refused(reason),
    }
}

/// Returns whether a kernel is one of Hopper's and this problem or device cannot use it.
pub(super) fn is_out_of_reach(symbol: &str, p: &Problem, on: &Capabilities) -> bool {
    let is_hoppers = HOPPERS.iter().chain(HOPPER_VARIANTS).any(|entry| entry.contract.symbol == symbol);
    is_hoppers && (p.alibi || !on.tensor_maps)
}

/// The columns of the kernel for head dims 72 and 88 instead of 96, if two warpgroups run. Kernels of head
/// dim 96 copy panels of 32 columns, and TMA is slow if rows begin inside 32-byte sectors. Two panels of 64
/// are faster, although the products have a third more columns (H200, 16 heads of 4096, D = 72: 1.17 times
/// as fast with a full mask, 1.18 times with a causal mask).
const WHOLE_PANELS: [u32; 2] = [128; 2];

/// Returns the kernel of the first matching line.
fn chosen(q: &Query<'_>, mask: MaskKind) -> Option<(&'static AttnInfo, &'static Line)> {
    let (p, on) = (q.problem, q.on);
    // If a portable kernel has fewer columns of K (32), Hopper's kernels would compute twice as much.
    let (_, portable) = super::columns(p, mask, PLANNED).ok()?;
    let columns = super::smallest(p, mask, HOPPERS).filter(|columns| columns[0] <= portable[0])?;
    let within_sectors = columns[0] == 96 && !p.head_dim.is_multiple_of(16);
    let serves = |line: &&Line| match within_sectors {
        true => line.columns == WHOLE_PANELS || line.columns == columns && line.tile_m == 192,
        false => line.columns == columns && !line.within_sectors,
    };
    let reaches = |line: &&Line| p.seqlen_k >= line.keys && p.seqlen_q >= line.queries;
    TABLE.iter().filter(serves).filter(reaches).find_map(|line| {
        let is_meant = |e: &&AttnInfo| {
            line.means(e) && (e.dtype, e.mask) == (p.dtype, mask) && line.masks.contains(&mask)
        };
        let entry = HOPPERS.iter().find(is_meant)?;
        let fills = p.tiles(entry.tile_m).saturating_mul(100) >= u64::from(on.sms) * line.tiles_per_100_sms;
        let work = |tile_m| p.tiles(tile_m).div_ceil(u64::from(on.sms).max(1)).saturating_mul(tile_m.into());
        let most = work(128).saturating_mul((line.most_work)(p.head_dim));
        let wastes = work(entry.tile_m).saturating_mul(100) > most;
        let runs = entry.contract.target.runs_on(on.arch()) && entry.contract.smem_bytes <= on.smem_per_block;
        let divides = || {
            matches!(
                Split::new(p, entry, on),
                Ok(Some(split)) if split.splits() > 1 && q.scratch.allows(split.workspace())
            )
        };
        (fills && !wastes && runs && (!line.splits || divides())).then_some((entry, line))
    })
}

impl Line {
    /// Returns whether the line selects this kernel.
    fn means(&self, entry: &AttnInfo) -> bool {
        (entry.columns(), entry.tile_m) == (self.columns, self.tile_m) && entry.splits == self.splits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn every_line_names_kernels_that_exist() {
        for line in TABLE {
            for (mask, dtype) in line.masks.iter().flat_map(|m| [(*m, DType::F16), (*m, DType::Bf16)]) {
                let named = HOPPERS.iter().filter(|e| line.means(e) && (e.dtype, e.mask) == (dtype, mask));
                assert_eq!(named.count(), 1, "{dtype:?} {mask:?} {:?} {}", line.columns, line.tile_m);
            }
        }
    }
}
