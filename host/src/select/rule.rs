//! A rule of selection, and how it selects.
use super::{Choice, Query};
use crate::schedule::Split;
use crate::{AttnInfo, MaskKind};
use core::cell::Cell;
use spec::{Class, Isa};

/// A question, with the kernels among which the rules select.
pub(super) struct Case<'a> {
    pub q: &'a Query<'a>,
    /// The candidates, in the table's order.
    pub kernels: &'a [&'static AttnInfo],
    /// All kernels that solve the problem.
    pub all: &'a [&'static AttnInfo],
}

/// A table line.
pub(super) struct Rule {
    pub of: Of,
    /// The kernel's maxima of columns, of K and of V; 0 permits any.
    pub columns: [u32; 2],
    pub masks: &'static [MaskKind],
    /// `[tile_m, tile_n]` of the kernel; 0 permits any.
    tile: [u32; 2],
    /// The kernel's number of key/value stages; 0 permits any.
    stages: u32,
    devices: &'static [Smem],
    /// Minimum number of keys.
    keys: usize,
    /// Minimum number of queries.
    queries: usize,
    fills: Fills,
    /// A further condition.
    when: fn(&Case<'_>, &AttnInfo) -> bool,
    reason: &'static str,
}

/// The kernels of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Hopper's kernels of a class, without parameters of mask and scores.
    Hopper(Class),
    /// Hopper's kernels with parameters of mask and scores.
    HopperSpecial,
    /// Portable kernels of a class, without parameters. Callers' dense kernels with a tile and schedule of
    /// such a kernel follow its rules.
    Portable(Class),
    /// Portable kernels with parameters.
    Special,
    /// Decode kernels of a class.
    Few(Class),
}

/// Shared memory per thread block. The compute capability decides which kernels a device can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Smem {
    /// 99 KiB: L4, L40S, A10, RTX 30, 40 and 50.
    Small,
    /// 163 KiB: A100, Orin.
    Medium,
    /// 227 KiB: H100, H200, B200.
    Large,
}

/// The minimum number of thread blocks for which a tile pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fills {
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

impl Rule {
    pub const fn new(of: Of, reason: &'static str) -> Self {
        Rule {
            of,
            columns: [0; 2],
            masks: ALL,
            tile: [0; 2],
            stages: 0,
            devices: &[Smem::Small, Smem::Medium, Smem::Large],
            keys: 1,
            queries: 1,
            fills: Fills::Anyhow,
            when: |_, _| true,
            reason,
        }
    }

    /// Returns a rule for a portable dense kernel with two stages, for full and causal masks.
    pub const fn dense(head_dim: u32, tile: [u32; 2], reason: &'static str) -> Self {
        let rule = Rule::new(Of::Portable(Class::Dense), reason).only(PLAIN);
        Rule { columns: [head_dim; 2], tile, stages: 2, ..rule }
    }

    /// Returns a rule for one of Hopper's dense kernels and every mask. The rule holds from 1024 keys and one
    /// tile per SM on: an SM holds one block, so a tile must be long enough to pay for its prologue.
    pub const fn hopper(head_dim: u32, tile_m: u32, reason: &'static str) -> Self {
        let rule = Rule::new(Of::Hopper(Class::Dense), reason).with_keys(1024).per_100_sms(100);
        Rule { columns: [head_dim; 2], tile: [tile_m, 0], ..rule }
    }

    /// Returns a rule for shorter problems. It needs at least this number of keys, more than half a tile of
    /// queries, and tiles for this share of the SMs. With fewer tiles, smaller tiles distribute better over
    /// the SMs.
    pub const fn short(head_dim: u32, keys: usize, tiles_per_100_sms: u64) -> Self {
        let rule = Rule::hopper(head_dim, 128, SHORT).only(PLAIN).with_keys(keys);
        Rule { queries: 66, ..rule.per_100_sms(tiles_per_100_sms) }
    }

    pub const fn with_values(self, head_dim_v: u32) -> Self {
        Rule { columns: [self.columns[0], head_dim_v], ..self }
    }

    pub const fn with_stages(self, stages: u32) -> Self {
        Rule { stages, ..self }
    }

    pub const fn on(self, devices: &'static [Smem]) -> Self {
        Rule { devices, ..self }
    }

    pub const fn with_keys(self, keys: usize) -> Self {
        Rule { keys, ..self }
    }

    pub const fn only(self, masks: &'static [MaskKind]) -> Self {
        Rule { masks, ..self }
    }

    pub const fn if_it(self, fills: Fills) -> Self {
        Rule { fills, ..self }
    }

    pub const fn per_100_sms(self, tiles: u64) -> Self {
        self.if_it(Fills::PerCent(tiles))
    }

    pub const fn when(self, when: fn(&Case<'_>, &AttnInfo) -> bool) -> Self {
        Rule { when, ..self }
    }
}

pub(super) const ALL: &[MaskKind] = &[
    MaskKind::Full,
    MaskKind::Causal,
    MaskKind::Local,
    MaskKind::Prefix,
    MaskKind::Chunked,
    MaskKind::Bits,
    MaskKind::Own,
];
pub(super) const PLAIN: &[MaskKind] = &[MaskKind::Full, MaskKind::Causal];
pub(super) const FULL: &[MaskKind] = &[MaskKind::Full];
pub(super) const CAUSAL: &[MaskKind] = &[MaskKind::Causal];
pub(super) const LOCAL: &[MaskKind] = &[MaskKind::Local];
pub(super) const SMALL: &[Smem] = &[Smem::Small];
/// Cards whose SMs have enough shared memory for more stages.
pub(super) const BIG: &[Smem] = &[Smem::Medium, Smem::Large];

/// Measured on an H200 (f16, 72 to 1024 keys, L2 cold, graphs): docs/performance-log.md, "Short problems".
const SHORT: &str = "warpgroups and TMA; a short problem with tiles for enough SMs (H200: 1.0 to 2.0x \
                     the portable kernel, 1.2x cuDNN)";
/// The reason if split-KV would be faster but there is no workspace.
const UNSPLIT: &str = "few queries, many keys, no workspace: SMs may idle; plan with `Scratch::Fastest` for \
                     split-KV";

pub(super) fn tile(e: &AttnInfo) -> [u32; 2] {
    [e.tile_m, e.tile_n]
}

pub(super) fn fills_device(q: &Query<'_>, e: &AttnInfo) -> bool {
    q.tiles(e) >= u64::from(q.on.sms) * u64::from(q.on.blocks_per_sm(&e.contract))
}

impl Rule {
    /// Returns whether the rule names this kernel.
    pub fn names(&self, e: &AttnInfo) -> bool {
        let is = |number: u32, of: u32| number == 0 || number == of;
        is(self.columns[0], e.columns()[0])
            && is(self.columns[1], e.columns()[1])
            && is(self.tile[0], e.tile_m)
            && is(self.tile[1], e.tile_n)
            && is(self.stages, e.stages)
            && (e.decodes() || e.splits == (self.fills == Fills::Splits))
    }

    /// Returns whether the rule is about kernels like this one.
    fn concerns(&self, q: &Query<'_>, e: &AttnInfo) -> bool {
        let (special, class) = (q.is_special(e), e.class());
        match self.of {
            Of::Few(of) => of == class,
            _ if e.decodes() => false,
            Of::Hopper(of) => e.has_maps() && !special && of == class,
            Of::HopperSpecial => e.has_maps() && special,
            Of::Portable(of) => !e.has_maps() && of == class && (!special || is_of_table(q, e)),
            Of::Special => !e.has_maps() && special,
        }
    }

    /// Returns whether the rule is about problems like this one, on devices like this one.
    fn is_for(&self, q: &Query<'_>) -> bool {
        let masks: &[MaskKind] = match q.kind.mask {
            MaskKind::Full => FULL,
            MaskKind::Causal => CAUSAL,
            MaskKind::Local if q.problem.variant.is_none() => LOCAL,
            // Other masks use the rules that hold for full and causal masks.
            _ => PLAIN,
        };
        let smem = match q.on.smem_per_block {
            0..163_000 => Smem::Small,
            163_000..227_000 => Smem::Medium,
            _ => Smem::Large,
        };
        let long = self.keys <= q.problem.seqlen_k && self.queries <= q.problem.seqlen_q;
        long && self.devices.contains(&smem) && masks.iter().all(|mask| self.masks.contains(mask))
    }

    /// Returns whether enough blocks of a kernel run. Notes whether a split lacks only the workspace.
    fn fills(&self, q: &Query<'_>, e: &AttnInfo, lacks_workspace: &Cell<bool>) -> bool {
        let (tiles, sms) = (|| q.tiles(e), u64::from(q.on.sms));
        match self.fills {
            Fills::Anyhow => true,
            Fills::PerCent(blocks) => tiles().saturating_mul(100) >= sms * blocks,
            Fills::Device => fills_device(q, e),
            Fills::OneWave => tiles() <= sms,
            Fills::Splits => match Split::new(q.problem, e, q.on) {
                Ok(Some(split)) if split.splits() > 1 => {
                    lacks_workspace.set(!e.has_maps() && !q.scratch.allows(split.workspace()));
                    q.scratch.allows(split.workspace())
                }
                _ => false,
            },
        }
    }
}

/// Returns whether a caller's dense kernel has the tile and the schedule of a kernel of the table.
fn is_of_table(q: &Query<'_>, e: &AttnInfo) -> bool {
    let shape = |e: &AttnInfo| (e.columns(), tile(e), e.stages, e.schedule, e.splits);
    let of_table = || spec::plain(Isa::Sm80, Class::Dense).filter(|of| of.dtype == e.dtype);
    q.problem.variant.is_some() && e.class() == Class::Dense && of_table().any(|of| shape(of) == shape(e))
}

/// Returns the kernel of the first of these rules that holds.
pub(super) fn choose(rules: &[Rule], case: &Case<'_>) -> Option<Choice> {
    let (q, lacks_workspace) = (case.q, Cell::new(false));
    rules.iter().filter(|rule| rule.is_for(q)).find_map(|rule| {
        let holds = |e: &AttnInfo| {
            rule.concerns(q, e) && rule.names(e) && rule.fills(q, e, &lacks_workspace) && (rule.when)(case, e)
        };
        let kernel = case.kernels.iter().copied().find(|e| holds(e))?;
        let unsplit = lacks_workspace.get() && rule.of == Of::Portable(Class::Dense);
        Some(Choice::new(kernel, if unsplit { UNSPLIT } else { rule.reason }))
    })
}
