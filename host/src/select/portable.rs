//! Which of the kernels that every generation runs solves a problem of equal lengths: a small table for each
//! class of devices, with the reason beside each line.
use super::Choice;
use crate::request::Scratch;
use crate::schedule::Split;
use crate::{AttnInfo, Capabilities, Error, MaskKind, Problem};
use core::cell::Cell;
use spec::PLANNED;

/// Devices that want the same entries. Which of these a device can run at all its compute capability says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// 99 KiB of shared memory a block: L4, L40S, A10, RTX 30, 40 and 50.
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

/// How many blocks a launch must have for a tile to be worth taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fills {
    /// Any number.
    Anyhow,
    /// So many for each 100 SMs.
    PerCent(u64),
    /// As many as the device holds at once.
    Device,
    /// No more than SMs.
    OneWave,
    /// Several for each tile, with their splits of its keys, in the workspace that there is.
    Splits,
}

/// One line: on these devices, for these problems, this tile.
struct Line {
    classes: &'static [Class],
    head_dim: u32,
    masks: &'static [MaskKind],
    /// `[tile_m, tile_n]` of the entry.
    tile: [u32; 2],
    /// The entry's key/value stages.
    stages: u32,
    /// Keys that a problem must have at least.
    keys: usize,
    /// How many blocks the launch must have at least.
    fills: Fills,
    reason: &'static str,
}

impl Line {
    /// On every device, for full and causal masks.
    const fn new(head_dim: u32, tile: [u32; 2], reason: &'static str) -> Self {
        let (classes, masks) = (
            &[Class::Small, Class::Medium, Class::Large] as &[_],
            &[MaskKind::Full, MaskKind::Causal] as &[_],
        );
        Line { classes, head_dim, masks, tile, stages: 2, keys: 1, fills: Fills::Anyhow, reason }
    }

    /// Whether the line means this entry, of the line's head dim and mask.
    fn means(&self, entry: &AttnInfo) -> bool {
        let splits = self.fills == Fills::Splits;
        ([entry.tile_m, entry.tile_n], entry.stages) == (self.tile, self.stages) && entry.splits == splits
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
/// Cards whose SMs have room for more stages.
const BIG: &[Class] = &[Class::Medium, Class::Large];

/// Source: measurements on an H200 for its class (docs/performance-log.md), the model held against them for
/// the others (docs/l4-model.md).
///
/// The first line that holds, and whose entry fits the device, decides. Larger tiles first: they read keys
/// and values less often, and give way only where they would leave SMs idle.
#[rustfmt::skip]
const TABLE: &[Line] = &[
    Line::new(64, [128, 32], "long: the next scores are under way during this block's exponentials")
        .with_keys(2048).if_it_fills(),
    Line::new(64, [64, 64], "short and causal: 64 queries end sooner than 128, two stages are under way \
        (H200, 32x32 heads of 512: 149 us against 158)").only(CAUSAL).with_stages(3).on(BIG).if_it_fills(),
    Line::new(64, [128, 64], "not long enough for the overlap's prologue to pay: one block of 64 keys after \
        the other").if_it_fills(),
    Line::new(64, [128, 64], SPLITS).with_keys(2048).if_splits_help(),
    Line::new(64, [128, 64], "one block of 128 queries an SM keeps its tensor cores busy (model of the L4, \
        2x8 heads of 512: 21 to 23 us against 24 to 26 for 64)")
        .only(FULL).on(SMALL).if_blocks_per_100_sms(95),
    Line::new(64, [64, 64], "two blocks of 64 queries an SM (model of the L4, 2x8 heads of 512: 15.5 us \
        against 17 with warps that share keys)").only(CAUSAL).on(SMALL).if_blocks_per_100_sms(190),
    Line::new(64, [64, 128], "64 queries a block, 32 a warp, two warps share their keys (model of the L4, 8 \
        heads of 512: 9.4 us against 12.5 to 13.9 without)").only(CAUSAL).on(SMALL).if_blocks_per_100_sms(95),
    Line::new(64, [64, 128], "64 queries a block, 32 a warp, two warps share their keys (H200, 4x8 heads of \
        512, causal: 8.9 us against 9.3 for 32, in two runs)").on(BIG).if_blocks_per_100_sms(150),
    Line::new(64, [64, 64], "one block of 64 queries an SM (H200, 2x8 heads of 512: 6.2 us against 6.4 \
        for 32)").only(FULL).if_blocks_per_100_sms(95),
    Line::new(64, [32, 256], "few queries, many keys: four warps share the keys of 32 queries")
        .with_keys(2048),
    Line::new(64, [32, 128], "few queries for this card: 32 a block, two warps share their keys, all loads \
        under way (H200, 8 heads of 512: 4.7 us against 4.85)")
        .only(FULL).with_stages(4).on(BIG).in_one_wave(),
    Line::new(64, [32, 128], "few queries for this card: 32 a block, and two warps share their keys (H200, 8 \
        heads of 512: 4.9 us against 5.9 for 64)"),
    Line::new(128, [128, 48], "two blocks of 64 keys do not fit an SM, two of 48 do").on(&[Class::Medium])
        .if_it_fills(),
    Line::new(128, [128, 64],
        "as many keys a block as fit (H200: 1.2x and 1.3x FlashAttention-2, full and causal)").if_it_fills(),
    Line::new(128, [128, 64], SPLITS).with_keys(2048).if_splits_help(),
    Line::new(128, [64, 64], "64 queries a block, 32 a warp, two warps share their keys")
        .if_blocks_per_100_sms(150),
    Line::new(128, [32, 128], "few queries, many keys: four warps share the keys of 32 queries")
        .with_keys(2048),
    Line::new(128, [32, 64], "few queries for this card: 32 a block, and two warps share their keys"),
    Line::new(192, [128, 64], "128 queries a block read keys and values half as often as 64").if_it_fills(),
    Line::new(192, [64, 32], "128 queries a block do not fit, or would leave SMs idle: 64"),
    Line::new(256, [128, 32], "128 queries a block read keys and values half as often as 64").if_it_fills(),
    Line::new(256, [64, 32], "128 queries a block do not fit, or would leave SMs idle: 64"),
];
/// Where the table has no line: the first entry that fits, in the order of [`ENTRIES`].
const FIRST: &str = "first entry of this type, head dim and mask that fits the device";
const SPLITS: &str = "few queries, many keys, and a workspace: several thread blocks for each 128 queries, \
                      each with a split of the keys";
/// The same without it.
const UNCUT: &str = "few queries, many keys: with the workspace that `Scratch::Fastest` asks for several \
                     thread blocks would share the keys; without it SMs may do nothing";
/// Chooses among the entries that every generation runs.
///
/// # Errors
/// [`Error::Unsupported`] where none fits the device.
pub(super) fn choose(
    p: &Problem,
    mask: MaskKind,
    on: &Capabilities,
    scratch: Scratch,
) -> Result<Choice, Error> {
    let head_dim = PLANNED.iter().map(|e| e.head_dim).filter(|d| *d as usize >= p.head_dim).min();
    let matches = |e: &AttnInfo| (e.dtype, e.mask) == (p.dtype, mask) && Some(e.head_dim) == head_dim;
    let candidates = || PLANNED.iter().filter(|e| matches(e) && on.runs(&e.contract).is_ok());
    let class = Class::of(on);
    let uncut = Cell::new(false);
    let fills = |e: &AttnInfo, fills: Fills| {
        let tiles = p.tiles(e.tile_m);
        let sms = u64::from(on.sms);
        match fills {
            Fills::Splits => match Split::new(p, e, on) {
                Ok(Some(split)) if split.splits() > 1 => {
                    uncut.set(!scratch.allows(split.workspace()));
                    !uncut.get()
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
        let concerns =
            Some(line.head_dim) == head_dim && line.masks.contains(&mask) && line.classes.contains(&class);
        let holds = |e: &AttnInfo| line.means(e) && fills(e, line.fills);
        if concerns
            && p.seqlen_k >= line.keys
            && let Some(entry) = candidates().find(|e| holds(e))
        {
            return Ok(Choice::new(entry, if uncut.get() { UNCUT } else { line.reason }));
        }
    }
    let first = candidates().find(|entry| !entry.splits);
    first.map(|entry| Choice::new(entry, FIRST)).ok_or_else(|| {
        let feature =
            format_args!("{} head_dim {} {} on {}", p.dtype.name(), p.head_dim, mask.name(), on.name);
        let reason = format_args!("no entry fits its {} bytes of shared memory a block", on.smem_per_block);
        Error::unsupported(feature, reason)
    })
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
                    (e.dtype, e.head_dim, e.mask) == (dtype, line.head_dim, mask) && line.means(e)
                };
                assert_eq!(
                    PLANNED.iter().filter(named).count(),
                    1,
                    "{dtype:?} {mask:?} {} {:?}",
                    line.head_dim,
                    line.tile
                );
            }
        }
    }
}
