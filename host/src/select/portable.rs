//! Selection among the portable kernels for dense problems: one small table per class of devices, with a
//! reason beside each line.
use super::Choice;
use crate::request::Scratch;
use crate::schedule::Split;
use crate::{AttnInfo, Capabilities, Error, MaskKind, Problem};
use core::cell::Cell;
use spec::PLANNED;

/// Classes of devices with equal best entries. The compute capability decides which entries a device can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// 99 KiB of shared memory per block: L4, L40S, A10, RTX 30, 40 and 50.
    Small,
    /// 163 KiB: A100, Orin.
    Medium,
    /// 227 KiB: H100, H200, B200.
    Large,
}

impl Class {
    fn of(on: &Capabilities) -> Self {
        match on.smem_per_block {
            0..163_000 => Class::Small,
            163_000..227_000 => Class::Medium,
            _ => Class::Large,
        }
    }
}

/// The minimum number of thread blocks for which a tile pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fills {
    /// Any number of blocks.
    Anyhow,
    /// This number of blocks per 100 SMs.
    PerCent(u64),
    /// The number of blocks that the device holds at once.
    Device,
    /// At most one block per SM.
    OneWave,
    /// Several blocks per tile (split-KV), if the workspace suffices.
    Splits,
}

/// A table line: the tile to select on these devices for these problems.
struct Line {
    classes: &'static [Class],
    /// The entry's maxima of columns: of K and of V.
    columns: [u32; 2],
    masks: &'static [MaskKind],
    /// `[tile_m, tile_n]` of the entry.
    tile: [u32; 2],
    /// The entry's number of key/value stages.
    stages: u32,
    /// Minimum number of keys.
    keys: usize,
    /// Minimum number of blocks in the launch.
    fills: Fills,
    reason: &'static str,
}

impl Line {
    /// Returns a line for every device, and for full and causal masks.
    const fn new(head_dim: u32, tile: [u32; 2], reason: &'static str) -> Self {
        let (classes, masks) = (
            &[Class::Small, Class::Medium, Class::Large] as &[_],
            &[MaskKind::Full, MaskKind::Causal] as &[_],
        );
        let columns = [head_dim; 2];
        Line { classes, columns, masks, tile, stages: 2, keys: 1, fills: Fills::Anyhow, reason }
    }

    /// Returns whether the line selects this entry, for the line's columns and mask.
    fn means(&self, entry: &AttnInfo) -> bool {
        let splits = self.fills == Fills::Splits;
        ([entry.tile_m, entry.tile_n], entry.stages) == (self.tile, self.stages) && entry.splits == splits
    }

    const fn with_values(self, head_dim_v: u32) -> Self {
        Line { columns: [self.columns[0], head_dim_v], ..self }
    }

    const fn with_stages(self, stages: u32) -> Self {
        Line { stages, ..self }
    }

    const fn on(self, classes: &'static [Class]) -> Self {
        Line { classes, ..self }
    }

    const fn with_keys(self, keys: usize) -> Self {
        Line { keys, ..self }
    }

    const fn only(self, masks: &'static [MaskKind]) -> Self {
        Line { masks, ..self }
    }

    const fn if_it_fills(self) -> Self {
        Line { fills: Fills::Device, ..self }
    }

    const fn in_one_wave(self) -> Self {
        Line { fills: Fills::OneWave, ..self }
    }

    const fn if_splits_help(self) -> Self {
        Line { fills: Fills::Splits, ..self }
    }

    const fn if_blocks_per_100_sms(self, blocks: u64) -> Self {
        Line { fills: Fills::PerCent(blocks), ..self }
    }
}

const FULL: &[MaskKind] = &[MaskKind::Full];
const CAUSAL: &[MaskKind] = &[MaskKind::Causal];
const SMALL: &[Class] = &[Class::Small];
/// Cards whose SMs have enough shared memory for more stages.
const BIG: &[Class] = &[Class::Medium, Class::Large];

/// Some reasons contain times. The times of large cards are measurements on an H200
/// (docs/performance-log.md). The times of small cards are predictions of a model of the L4
/// (docs/l4-model.md), which was compared with measurements on the H200.
///
/// The first matching line with an entry that fits the device decides. Larger tiles come first: they read
/// keys and values less often. A larger tile is skipped only if it would leave SMs idle.
#[rustfmt::skip]
const TABLE: &[Line] = &[
    Line::new(64, [128, 32], "long: the next scores are computed during this block's exponentials")
        .with_keys(2048).if_it_fills(),
    Line::new(64, [64, 64], "short and causal: 64 queries end sooner than 128, two stages are in flight \
        (H200, 32x32 heads of 512: 149 us against 158)").only(CAUSAL).with_stages(3).on(BIG).if_it_fills(),
    Line::new(64, [128, 64], "too short for the overlapped schedule's prologue: key blocks of 64 in \
        sequence").if_it_fills(),
    Line::new(64, [128, 64], SPLITS).with_keys(2048).if_splits_help(),
    Line::new(64, [128, 64], "one block of 128 queries per SM keeps its tensor cores busy (model of the L4, \
        2x8 heads of 512: 21 to 23 us against 24 to 26 for 64)")
        .only(FULL).on(SMALL).if_blocks_per_100_sms(95),
    Line::new(64, [64, 64], "two blocks of 64 queries per SM (model of the L4, 2x8 heads of 512: 15.5 us \
        against 17 with warps that split keys)").only(CAUSAL).on(SMALL).if_blocks_per_100_sms(190),
    Line::new(64, [64, 128], "64 queries per block, 32 per warp, two warps split their keys (model of \
        the L4, 8 heads of 512: 9.4 us against 12.5 to 13.9 without)")
        .only(CAUSAL).on(SMALL).if_blocks_per_100_sms(95),
    Line::new(64, [64, 128], "64 queries per block, 32 per warp, two warps split their keys (H200, 4x8 heads \
        of 512, causal: 8.9 us against 9.3 for 32, in two runs)").on(BIG).if_blocks_per_100_sms(150),
    Line::new(64, [64, 64], "one block of 64 queries per SM (H200, 2x8 heads of 512: 6.2 us against 6.4 \
        for 32)").only(FULL).if_blocks_per_100_sms(95),
    Line::new(64, [32, 256], "few queries, many keys: four warps split the keys of 32 queries")
        .with_keys(2048),
    Line::new(64, [32, 128], "few queries for this GPU: 32 per block, two warps split their keys, all loads \
        in flight (H200, 8 heads of 512: 4.7 us against 4.85)")
        .only(FULL).with_stages(4).on(BIG).in_one_wave(),
    Line::new(64, [32, 128], "few queries for this GPU: 32 per block, and two warps split their keys (H200, \
        8 heads of 512: 4.9 us against 5.9 for 64)"),
    Line::new(128, [128, 48], "two blocks with 64 keys per stage do not fit an SM, two with 48 do")
        .on(&[Class::Medium]).if_it_fills(),
    Line::new(128, [128, 64],
        "the most keys per stage that fit (H200: 1.2x and 1.3x FlashAttention-2, full and causal)")
        .if_it_fills(),
    Line::new(128, [128, 64], SPLITS).with_keys(2048).if_splits_help(),
    Line::new(128, [64, 64], "64 queries per block, 32 per warp, two warps split their keys")
        .if_blocks_per_100_sms(150),
    Line::new(128, [32, 128], "few queries, many keys: four warps split the keys of 32 queries")
        .with_keys(2048),
    Line::new(128, [32, 64], "few queries for this GPU: 32 per block, and two warps split their keys"),
    Line::new(192, [128, 64], "128 queries per block read keys and values half as often as 64").if_it_fills(),
    Line::new(192, [64, 32], "128 queries per block do not fit, or would leave SMs idle: 64"),
    Line::new(192, [128, 48], "values of 128 columns leave registers for 32 rows per warp, which halves the \
        reads of shared memory (model of the H200: 475 TFLOP/s, 361 with V padded to 192)")
        .with_values(128).if_it_fills(),
    Line::new(192, [64, 48], "128 queries per block do not fit, or would leave SMs idle: 64")
        .with_values(128),
    Line::new(256, [128, 32], "128 queries per block read keys and values half as often as 64").if_it_fills(),
    Line::new(256, [64, 32], "128 queries per block do not fit, or would leave SMs idle: 64"),
];
/// The reason if no line of [`TABLE`] matches. The planner then takes the first entry of [`PLANNED`] that
/// fits the device.
const FIRST: &str = "the first kernel of this dtype, head dim and mask that fits the device";
const SPLITS: &str = "split-KV for few queries on many keys: several thread blocks per 128 queries, \
                      each with a split of the keys";
/// The reason if split-KV would be faster but there is no workspace.
const UNSPLIT: &str = "few queries, many keys, no workspace: SMs may idle; plan with `Scratch::Fastest` for \
                     split-KV";
/// Selects among the portable entries.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no entry fits the device.
pub(super) fn choose(
    p: &Problem,
    mask: MaskKind,
    on: &Capabilities,
    scratch: Scratch,
) -> Result<Choice, Error> {
    let (of_mask, columns) = super::columns(p, mask, PLANNED)?;
    let matches = |e: &AttnInfo| (e.dtype, e.mask, e.columns()) == (p.dtype, of_mask, columns);
    let candidates = || PLANNED.iter().filter(|e| matches(e) && on.runs(&e.contract).is_ok());
    let first = candidates().find(|entry| !entry.splits);
    let by_table = match of_mask == mask {
        true => by_table(p, on, scratch, columns, candidates()),
        false => first.map(|entry| Choice::new(entry, super::GENERAL)),
    };
    by_table.or_else(|| first.map(|entry| Choice::new(entry, FIRST))).ok_or_else(|| {
        let feature = format_args!("{} {} {} on {}", p.dtype.name(), p.named_columns(), mask.name(), on.name);
        let reason =
            format_args!("no kernel fits into its {} bytes of shared memory per block", on.smem_per_block);
        Error::unsupported(feature, reason)
    })
}

/// Returns the first line of the table with a kernel among the candidates, which have these columns and fit
/// the device.
pub(super) fn by_table(
    p: &Problem,
    on: &Capabilities,
    scratch: Scratch,
    columns: [u32; 2],
    candidates: impl Iterator<Item = &'static AttnInfo> + Clone,
) -> Option<Choice> {
    // Other masks use the lines that hold for full and causal masks.
    let masks: &[MaskKind] = match p.mask_kind() {
        MaskKind::Full => FULL,
        MaskKind::Causal => CAUSAL,
        MaskKind::Local if p.variant.is_none() => &[MaskKind::Local],
        _ => &[MaskKind::Full, MaskKind::Causal],
    };
    let class = Class::of(on);
    let lacks_workspace = Cell::new(false);
    let fills = |e: &AttnInfo, fills: Fills| {
        let tiles = p.tiles(e.tile_m);
        let sms = u64::from(on.sms);
        match fills {
            Fills::Splits => match Split::new(p, e, on) {
                Ok(Some(split)) if split.splits() > 1 => {
                    lacks_workspace.set(!scratch.allows(split.workspace()));
                    !lacks_workspace.get()
                }
                _ => false,
            },
            Fills::Anyhow => true,
            Fills::OneWave => tiles <= sms,
            Fills::PerCent(blocks) => tiles.saturating_mul(100) >= sms * blocks,
            Fills::Device => tiles >= sms * u64::from(on.blocks_per_sm(&e.contract)),
        }
    };
    for line in TABLE {
        let is_of_masks = masks.iter().all(|mask| line.masks.contains(mask));
        let concerns = line.columns == columns && is_of_masks && line.classes.contains(&class);
        let holds = |e: &AttnInfo| line.means(e) && fills(e, line.fills);
        if concerns
            && p.seqlen_k >= line.keys
            && let Some(entry) = candidates.clone().find(|e| holds(e))
        {
            return Some(Choice::new(entry, if lacks_workspace.get() { UNSPLIT } else { line.reason }));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn every_line_names_entries_that_exist() {
        for line in TABLE {
            for (mask, dtype) in
                line.masks.iter().flat_map(|mask| [(*mask, DType::F16), (*mask, DType::Bf16)])
            {
                let named = |e: &&AttnInfo| {
                    (e.dtype, e.columns(), e.mask) == (dtype, line.columns, mask) && line.means(e)
                };
                assert_eq!(
                    PLANNED.iter().filter(named).count(),
                    1,
                    "{dtype:?} {mask:?} {:?} {:?}",
                    line.columns,
                    line.tile
                );
            }
        }
    }
}
