//! A rule of selection, and how it selects.
use super::{Choice, Query};
use crate::schedule::Split;
use crate::{AttnInfo, MaskKind};
use core::cell::Cell;
use core::ops::Range;
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
    /// The problem's mask; an empty list permits any.
    pub masks: &'static [MaskKind],
    /// `[tile_m, tile_n]` of the kernel; 0 permits any.
    tile: [u32; 2],
    /// The kernel's number of key/value stages; 0 permits any.
    stages: u32,
    /// Shared memory per thread block of the rule's devices, in bytes.
    smem: Range<u32>,
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

/// One setter per field, with the field's name.
macro_rules! setters {
    ($($field:ident: $type:ty),* $(,)?) => {
        $(pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        })*
    };
}

impl Rule {
    pub const fn new(of: Of, reason: &'static str) -> Self {
        Rule {
            of,
            columns: [0; 2],
            masks: &[],
            tile: [0; 2],
            stages: 0,
            smem: 0..u32::MAX,
            keys: 1,
            queries: 1,
            fills: Fills::Anyhow,
            when: |_, _| true,
            reason,
        }
    }

    /// Returns a rule for a portable dense kernel with two stages, for full and causal masks.
    pub const fn dense(head_dim: u32, tile: [u32; 2], reason: &'static str) -> Self {
        let mut rule = Rule::new(Of::Portable(Class::Dense), reason).masks(PLAIN).stages(2);
        (rule.columns, rule.tile) = ([head_dim; 2], tile);
        rule
    }

    /// Returns a rule for one of Hopper's dense kernels and every mask. The rule holds from 1024 keys and one
    /// tile per SM on: an SM holds one block, so a tile must be long enough to pay for its prologue.
    pub const fn hopper(head_dim: u32, tile_m: u32, reason: &'static str) -> Self {
        let mut rule = Rule::new(Of::Hopper(Class::Dense), reason).keys(1024).per_100_sms(100);
        (rule.columns, rule.tile) = ([head_dim; 2], [tile_m, 0]);
        rule
    }

    /// Returns a rule for shorter problems. It needs at least this number of keys, more than half a tile of
    /// queries, and tiles for this share of the SMs. With fewer tiles, smaller tiles distribute better over
    /// the SMs.
    pub const fn short(head_dim: u32, keys: usize, tiles_per_100_sms: u64) -> Self {
        let rule = Rule::hopper(head_dim, 128, SHORT).masks(PLAIN).keys(keys).queries(66);
        rule.per_100_sms(tiles_per_100_sms)
    }

    pub const fn with_values(mut self, head_dim_v: u32) -> Self {
        self.columns[1] = head_dim_v;
        self
    }

    pub const fn per_100_sms(self, tiles: u64) -> Self {
        self.fills(Fills::PerCent(tiles))
    }

    setters! {
        masks: &'static [MaskKind], stages: u32, smem: Range<u32>, keys: usize, queries: usize, fills: Fills,
        when: fn(&Case<'_>, &AttnInfo) -> bool,
    }
}

pub(super) const PLAIN: &[MaskKind] = &[MaskKind::Full, MaskKind::Causal];
pub(super) const FULL: &[MaskKind] = &[MaskKind::Full];
pub(super) const CAUSAL: &[MaskKind] = &[MaskKind::Causal];
pub(super) const LOCAL: &[MaskKind] = &[MaskKind::Local];
/// Devices with 99 KiB per thread block: L4, L40S, A10, RTX 30, 40 and 50.
pub(super) const SMALL: Range<u32> = 0..163_000;
/// Devices with 163 KiB: A100, Orin.
pub(super) const MEDIUM: Range<u32> = 163_000..227_000;
/// Devices with at least 163 KiB, whose SMs have enough shared memory for more stages.
pub(super) const BIG: Range<u32> = 163_000..u32::MAX;

/// Measured on an H200 (f16, 72 to 1024 keys, L2 cold, graphs): docs/log/hopper.md, "Short problems".
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
        let prefills = || !e.decodes();
        match self.of {
            Of::Few(of) => of == e.class(),
            Of::Hopper(of) => e.has_maps() && of == e.class() && prefills() && !q.is_special(e),
            Of::HopperSpecial => e.has_maps() && prefills() && q.is_special(e),
            Of::Portable(of) => {
                let is_of_table = || !q.is_special(e) || is_of_table(q, e);
                !e.has_maps() && of == e.class() && prefills() && is_of_table()
            }
            Of::Special => !e.has_maps() && prefills() && q.is_special(e),
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
        self.keys <= q.problem.seqlen_k
            && self.queries <= q.problem.seqlen_q
            && (self.smem.start..self.smem.end).contains(&q.on.smem_per_block)
            && (self.masks.is_empty() || masks.iter().all(|mask| self.masks.contains(mask)))
    }

    /// Returns whether enough blocks of a kernel run. Notes whether a split lacks only the workspace.
    fn has_blocks(&self, q: &Query<'_>, e: &AttnInfo, lacks_workspace: &Cell<bool>) -> bool {
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
    let of_table =
        || spec::plain(Isa::Sm80, Class::Dense).filter(|of| (of.dtype, of.o_dtype) == (e.dtype, e.o_dtype));
    q.problem.variant.is_some() && e.class() == Class::Dense && of_table().any(|of| shape(of) == shape(e))
}

/// Returns the kernel of the first of these rules that holds.
pub(super) fn choose(rules: &[Rule], case: &Case<'_>) -> Option<Choice> {
    let (q, lacks_workspace) = (case.q, Cell::new(false));
    rules.iter().filter(|rule| rule.is_for(q)).find_map(|rule| {
        let holds = |e: &AttnInfo| {
            rule.names(e)
                && rule.concerns(q, e)
                && rule.has_blocks(q, e, &lacks_workspace)
                && (rule.when)(case, e)
        };
        let kernel = case.kernels.iter().copied().find(|e| holds(e))?;
        let unsplit = lacks_workspace.get() && rule.of == Of::Portable(Class::Dense);
        Some(Choice::new(kernel, if unsplit { UNSPLIT } else { rule.reason }))
    })
}
