//! Which entry solves a problem: a small table for each class of devices, with the reason beside each line.
use self::hopper::Answer;
use crate::families;
use crate::families::split::Split;
use crate::plan::Tensors;
use crate::{Capabilities, Error, Problem, Tuning};
use core::cell::Cell;
use spec::{AttnInfo, ENTRIES, HOPPERS, HOPPERS_PACKED, MaskKind, PACKED, PLANNED};

pub(crate) mod hopper;

/// An entry and why it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub entry: &'static AttnInfo,
    pub reason: &'static str,
    /// What solves the problem for tensors that `entry` does not take.
    pub instead: Option<&'static AttnInfo>,
}

impl Choice {
    /// An entry that takes all tensors.
    pub const fn new(entry: &'static AttnInfo, reason: &'static str) -> Self {
        Choice { entry, reason, instead: None }
    }
}

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
    fn of(capabilities: &Capabilities) -> Self {
        match capabilities.smem_per_block {
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
    /// Several for each tile, with their slices of its keys, in the workspace that there is.
    Slices,
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
        let splits = self.fills == Fills::Slices;
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

    const fn if_slices_help(self) -> Self {
        Line { fills: Fills::Slices, ..self }
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
    Line::new(64, [128, 64], SLICES).with_keys(2048).if_slices_help(),
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
    Line::new(128, [128, 64], SLICES).with_keys(2048).if_slices_help(),
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
const SLICES: &str = "few queries, many keys, and a workspace: several blocks for each 128 queries, each \
                      with a slice of the keys";
/// The same without it.
const UNCUT: &str = "few queries, many keys: with the workspace that `plan_with(.., u64::MAX)` asks for \
                     several blocks would share the keys; without it SMs may do nothing";
/// Of an entry that the caller named.
pub(crate) const ASKED: &str = "asked for by name";
const MEASURED: &str = "the fastest on this device for this size: `ferroflash sweep`";

/// Chooses the entry for a problem, with these tensors or any, and a workspace of so many bytes.
pub(crate) fn choose(
    p: &Problem,
    tensors: Option<&Tensors>,
    capabilities: &Capabilities,
    config: Option<&str>,
    workspace: u64,
    tuning: &Tuning,
) -> Result<Choice, Error> {
    if capabilities.arch() < 80 {
        let (major, minor) = capabilities.compute_capability;
        let feature = format_args!("compute capability {major}.{minor} ({})", capabilities.name);
        return Err(Error::unsupported(
            feature,
            "kernels need 8.0 or newer: A100, RTX 30, L4, H100 and later",
        ));
    }
    let mask = p.mask_kind();
    if let Some(name) = config {
        return named(name, p, mask, capabilities);
    }
    if p.packed.is_some() {
        return hopper::packed(p, mask, capabilities, tensors);
    }
    // A size says nothing of slopes, nor a card's name of its driver.
    let measured = tuning.best(&capabilities.name, p);
    if let Some(name) = measured.filter(|name| !hopper::is_out_of_reach(name, p, capabilities)) {
        let measured = named(name, p, mask, capabilities).map_err(|e| {
            Error::invalid(
                "tuning",
                name,
                format_args!("it does not solve this problem ({e}); run `ferroflash sweep` again"),
            )
        });
        let choice = Choice { reason: MEASURED, ..measured? };
        // It was measured with a workspace, or tensors that it takes; without them the table decides.
        let by_maps = choice.entry.has_maps();
        let taken = !by_maps || tensors.is_none_or(|tensors| families::hopper::takes(tensors).is_ok());
        if taken && Split::workspace_of(p, choice.entry, capabilities)? <= workspace {
            let instead = by_maps.then(|| portable(p, mask, capabilities, 0)).transpose()?;
            return Ok(Choice { instead: instead.map(|choice| choice.entry), ..choice });
        }
    }
    match hopper::answer(p, mask, capabilities, tensors, workspace) {
        Answer::Taken(entry, reason) => {
            let instead = Some(portable(p, mask, capabilities, 0)?.entry);
            Ok(Choice { entry, reason, instead })
        }
        Answer::Refused(reason) => Ok(Choice { reason, ..portable(p, mask, capabilities, workspace)? }),
        Answer::Slower(_) | Answer::Portable => portable(p, mask, capabilities, workspace),
    }
}

/// Chooses among the entries that every generation runs.
fn portable(
    p: &Problem,
    mask: MaskKind,
    capabilities: &Capabilities,
    workspace: u64,
) -> Result<Choice, Error> {
    let head_dim = PLANNED.iter().map(|e| e.head_dim).filter(|d| *d as usize >= p.head_dim).min();
    let matches = |e: &AttnInfo| (e.dtype, e.mask) == (p.dtype, mask) && Some(e.head_dim) == head_dim;
    let candidates = || PLANNED.iter().filter(|e| matches(e) && capabilities.runs(&e.contract).is_ok());
    let class = Class::of(capabilities);
    let uncut = Cell::new(false);
    let fills = |e: &AttnInfo, fills: Fills| {
        let tiles = p.seqlen_q.div_ceil(e.tile_m as usize) as u64 * (p.batch * p.heads_q) as u64;
        let sms = u64::from(capabilities.sms);
        match fills {
            Fills::Slices => match Split::of(p, e, capabilities) {
                Ok(Some(split)) if split.slices() > 1 => {
                    uncut.set(split.workspace() > workspace);
                    !uncut.get()
                }
                _ => false,
            },
            Fills::Anyhow => true,
            Fills::OneWave => tiles <= sms,
            Fills::PerCent(blocks) => tiles.saturating_mul(100) >= sms * blocks,
            Fills::Device => tiles >= sms * u64::from(capabilities.blocks_per_sm(&e.contract)),
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
        let feature = format_args!(
            "{} head_dim {} {} on {}",
            p.dtype.name(),
            p.head_dim,
            mask.name(),
            capabilities.name
        );
        let reason =
            format_args!("no entry fits its {} bytes of shared memory a block", capabilities.smem_per_block);
        Error::unsupported(feature, reason)
    })
}

/// The entry that was asked for, by its own name or by one of the lineage's, if it solves the problem: same
/// type, a mask at least as general, a head dim at least as large.
fn named(name: &str, p: &Problem, mask: MaskKind, capabilities: &Capabilities) -> Result<Choice, Error> {
    let entry = by_name(name, mask)?;
    let general = entry.mask == mask || entry.mask == MaskKind::Local;
    let sequences = if p.packed.is_some() { "packed" } else { "equally long" };
    if entry.is_varlen() != p.packed.is_some() {
        // What the planner would take is one, whatever else is wrong with this one.
        let other = choose(p, None, capabilities, None, 0, &Tuning::new())?.entry.contract.symbol;
        let expected = format_args!("it is no kernel for {sequences} sequences; {other} is one");
        return Err(Error::invalid("config", name, expected));
    }
    if entry.dtype != p.dtype || !general || (entry.head_dim as usize) < p.head_dim {
        let expected = format_args!(
            "this problem needs {} with mask {} and head_dim {}, for {sequences} sequences",
            p.dtype.name(),
            mask.name(),
            p.head_dim
        );
        return Err(Error::invalid("config", name, expected));
    }
    if entry.has_maps() && p.alibi {
        return Err(Error::unsupported(
            format_args!("{name} with ALiBi slopes"),
            "portable kernels take them",
        ));
    }
    capabilities.runs(&entry.contract)?;
    Ok(Choice::new(entry, ASKED))
}

/// The entry of a symbol, or of one of the lineage's names for this mask.
pub(crate) fn by_name(name: &str, mask: MaskKind) -> Result<&'static AttnInfo, Error> {
    #[cfg(feature = "lineage")]
    if let Some(configuration) = crate::lineage::Configuration::find(name) {
        return configuration.entry(mask);
    }
    let _ = mask;
    entry(name)
}

/// Every kernel that may solve a [`crate::Forward`]: [`ENTRIES`], those for packed sequences, and those for
/// Hopper alone.
pub fn entries() -> impl Iterator<Item = &'static AttnInfo> {
    ENTRIES.iter().chain(PACKED).chain(HOPPERS).chain(HOPPERS_PACKED)
}

/// The entry of a symbol.
///
/// # Errors
/// [`Error::Invalid`] where the table has no such entry.
pub fn entry(symbol: &str) -> Result<&'static AttnInfo, Error> {
    entries().find(|entry| entry.contract.symbol == symbol).ok_or_else(|| {
        let expected = if spec::kernels().any(|kernel| kernel.symbol == symbol) {
            "it is a kernel for caches, appends or merges; this problem needs one of the families forward, \
             split, packed or hopper: `ferroflash kernels --family forward`"
        } else {
            "it must be the name of an entry or of a configuration of the lineage; `ferroflash kernels` \
             lists them"
        };
        Error::invalid("config", symbol, expected)
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
