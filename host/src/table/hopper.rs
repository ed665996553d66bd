//! When a Hopper kernel solves a problem on a card that has one.
use super::{CAUSAL, Choice, FULL};
use crate::families::hopper_packed::takes_packed;
use crate::families::split::Split;
use crate::families::{hopper, hopper_paged, packed};
use crate::plan::Tensors;
use crate::{Capabilities, DType, Decode, Error, Problem, Splits};
use spec::{AttnInfo, Contract, HOPPERS, HOPPERS_PACKED, HOPPERS_PAGED, MaskKind, PLANNED};

/// One line: for these problems, the kernel of so many queries a block.
struct Line {
    head_dim: u32,
    masks: &'static [MaskKind],
    tile_m: u32,
    /// Keys that a problem must have at least.
    keys: usize,
    /// Tiles that it must have for each 100 SMs.
    tiles_per_100_sms: u64,
    /// Whether blocks share a tile's keys, in the workspace that there is.
    splits: bool,
    reason: &'static str,
}

impl Line {
    /// For every mask, with 1024 keys and a tile for each SM: blocks are as many as SMs, and a tile's
    /// prologue must pay.
    const fn new(head_dim: u32, tile_m: u32, reason: &'static str) -> Self {
        let masks = &[MaskKind::Full, MaskKind::Causal, MaskKind::Local];
        Line { head_dim, masks, tile_m, keys: 1024, tiles_per_100_sms: 100, splits: false, reason }
    }

    /// The same for shorter problems, where there are many tiles: of few, smaller ones share the SMs better.
    /// Measured at 31 tiles for each SM; at 8 portable kernels take 1.03 (D = 64) and 1.18 times as long as
    /// cuDNN.
    const fn short(head_dim: u32, reason: &'static str) -> Self {
        Line { keys: 512, tiles_per_100_sms: 700, ..Line::new(head_dim, 128, reason) }
    }

    /// For few queries on many keys, where slices of them give the SMs more even work than whole tiles.
    const fn split(head_dim: u32) -> Self {
        let line = Line::new(head_dim, 128, SLICES).only(DIVIDED).with_keys(2048);
        Line { tiles_per_100_sms: 0, splits: true, ..line }
    }

    /// For as few, where slices do not, or there is no room for them.
    const fn few(head_dim: u32) -> Self {
        Line { tiles_per_100_sms: 75, ..Line::new(head_dim, 128, FEW) }.with_keys(2048)
    }

    const fn with_keys(self, keys: usize) -> Self {
        Line { keys, ..self }
    }

    const fn only(self, masks: &'static [MaskKind]) -> Self {
        Line { masks, ..self }
    }
}

/// Masks whose kernels split.
const DIVIDED: &[MaskKind] = &[MaskKind::Full, MaskKind::Causal];

/// The first line that holds decides. Where none does a portable kernel is taken: few tiles leave SMs idle,
/// and short ones end before a copy engine has begun to help (the headline, 8 heads of 512, is one).
#[rustfmt::skip]
const TABLE: &[Line] = &[
    Line::new(64, 192, "warpgroups and the copy engine; three warpgroups of queries read keys and values \
        less often than two (H200: 1.2x cuDNN)").only(FULL),
    Line::new(64, 192, "warpgroups and the copy engine; long and causal: three warpgroups of queries (H200: \
        1.2x cuDNN at 8192)").only(CAUSAL).with_keys(4096),
    Line::new(64, 128, "warpgroups and the copy engine (H200: 1.1x cuDNN)"),
    Line::new(96, 128, "warpgroups and the copy engine (H200: 1.3 to 1.6x cuDNN)"),
    Line::new(128, 128, "warpgroups and the copy engine (H200: 1.2 to 1.4x cuDNN)"),
    Line::new(192, 128, "warpgroups and the copy engine"),
    Line::new(256, 128, "warpgroups and the copy engine"),
    Line::short(64, "warpgroups and the copy engine; many short problems (H200: 1.1x cuDNN)"),
    Line::short(128, "warpgroups and the copy engine; many short problems (H200: 1.2x cuDNN)"),
    Line::split(64),
    Line::split(128),
    Line::few(64),
    Line::few(128),
];

const SLICES: &str = "warpgroups and the copy engine; few queries, many keys, and a workspace: several \
                      blocks for each 128 queries, each with a slice of the keys";
const FEW: &str = "warpgroups and the copy engine; few queries on many keys, but as many tiles as keep most \
                   SMs busy";

/// What the table says of a problem.
pub(crate) enum Answer<K: 'static = AttnInfo> {
    /// A Hopper kernel, and why.
    Taken(&'static K, &'static str),
    /// It would be one but for the tensors, or the driver.
    Refused(&'static str),
    /// It would be one, but a portable kernel is faster, and why.
    Slower(&'static str),
    /// None is meant: what the portable kernel is chosen for is the reason.
    Portable,
}

const NO_MAPS: &str = "the driver is older than CUDA 12.3: it takes no kernels with tensor maps";

/// Whether a Hopper kernel solves a problem of equal lengths, with these tensors or any, and a workspace of
/// so many bytes.
pub(super) fn answer(
    p: &Problem,
    mask: MaskKind,
    capabilities: &Capabilities,
    tensors: Option<&Tensors>,
    workspace: u64,
) -> Answer {
    let Some((entry, line)) = chosen(p, mask, capabilities, workspace) else { return Answer::Portable };
    if !capabilities.tensor_maps {
        return Answer::Refused(NO_MAPS);
    }
    match tensors.map_or(Ok(()), hopper::takes) {
        Ok(()) => Answer::Taken(entry, line.reason),
        Err(reason) => Answer::Refused(reason),
    }
}

const PACKED_REASON: &str = "warpgroups and the copy engine; sequences of a tile or more, or few queries on \
                             many keys, that fill the device";

/// The kernel that solves a packed problem, with these tensors or any: Hopper's where sequences have
/// on the average queries and keys that are worth a prologue, and there is a tile for each SM.
///
/// # Errors
/// [`Error::Unsupported`] where none fits the device.
pub(super) fn packed(
    p: &Problem,
    mask: MaskKind,
    on: &Capabilities,
    tensors: Option<&Tensors>,
) -> Result<Choice, Error> {
    let portable = packed::portable(p, mask, on)?;
    let want = (p.dtype, mask, portable.entry.head_dim);
    let is_meant = |e: &&AttnInfo| is_meant(&e.contract, (e.dtype, e.mask, e.head_dim), want, on);
    let entry = HOPPERS_PACKED.iter().find(is_meant).map(|entry| (entry, entry.tile_m));
    let lengths = p.shapes().map(|[_, rows, ..]| rows);
    let takes = |_: &_| tensors.map_or(Ok(()), takes_packed).and(Ok(PACKED_REASON));
    Ok(match of_sequences(entry, lengths, packed_least(want.1, want.2), p, on, takes) {
        Answer::Taken(entry, reason) => Choice { entry, reason, instead: Some(portable.entry) },
        Answer::Refused(reason) => Choice { reason, ..portable },
        Answer::Slower(_) | Answer::Portable => portable,
    })
}

/// Queries and keys that sequences must have on the average: at least as many of both as one of these says.
type Least = &'static [[usize; 2]];

/// Of packed tensors: a tile. (H200, f16, 16 to 256 sequences of 128, 256 and 384: portable kernels take 1.16
/// to 1.87 times as long, at 128 1.16 to 1.54.) Or few queries on many keys: 1.19 where 128 single queries
/// are beside a prompt of 1536, 1.26 for 16 queries on 2048 keys, but 0.90 on 512. Not measured at other head
/// dims.
const fn packed_least(mask: MaskKind, head_dim: u32) -> Least {
    match (mask, head_dim) {
        (MaskKind::Full | MaskKind::Causal, 128) => &[[128, 128], [1, 1024]],
        _ => &[[128, 128]],
    }
}

/// Over pages, of which the host often knows the most keys alone, and where the portable tile has as many
/// queries: 1.15 at 128 keys, 1.43 at 256, 1.91 with 128 single queries beside a prompt of 1536, but at head
/// dim 64 0.96 and 1.01 at 256, 1.05 at 384 (H200, f16, causal, pages of 16). Windows are not measured below.
const fn paged_least(mask: MaskKind, head_dim: u32) -> Least {
    match (mask, head_dim) {
        (MaskKind::Local, _) => &[[128, 512]],
        (_, 128) => &[[1, 128]],
        _ => &[[128, 384]],
    }
}

/// Whether sequences of so many queries and keys, all together, have on the average what they must, and there
/// is a tile for each SM.
fn is_worth_it(
    [queries, keys]: [usize; 2],
    least: Least,
    p: &Problem,
    tile_m: u32,
    on: &Capabilities,
) -> bool {
    // A sequence has a tile of its own, however few its queries.
    let tiles = queries.div_ceil(tile_m as usize).max(p.batch).saturating_mul(p.heads_q);
    let [queries, keys] = [queries, keys].map(|all| all / p.batch);
    least.iter().any(|least| queries >= least[0] && keys >= least[1]) && tiles >= on.sms as usize
}

const SHORT: &str = "too few queries or keys a sequence, or too few tiles for this device, to be worth \
                     a block of Hopper's: portable tiles of a query head's queries";

/// Whether a kernel is `of` the type, mask and head dim that are wanted, and the device holds it.
fn is_meant(
    contract: &Contract,
    of: (DType, MaskKind, u32),
    want: (DType, MaskKind, u32),
    on: &Capabilities,
) -> bool {
    of == want && contract.target.runs_on(on.arch()) && contract.smem_bytes <= on.smem_per_block
}

/// Whether the kernel that is meant, if there is one, with tiles of so many queries, solves sequences of so
/// many queries and keys, all together: where it is worth it, and it `takes` their tensors.
fn of_sequences<K>(
    entry: Option<(&'static K, u32)>,
    lengths: [usize; 2],
    least: Least,
    p: &Problem,
    on: &Capabilities,
    takes: impl FnOnce(&K) -> Result<&'static str, &'static str>,
) -> Answer<K> {
    let Some((entry, tile_m)) = entry.filter(|_| !p.alibi) else { return Answer::Portable };
    if !is_worth_it(lengths, least, p, tile_m, on) {
        return Answer::Slower(SHORT);
    }
    if !on.tensor_maps {
        return Answer::Refused(NO_MAPS);
    }
    match takes(entry) {
        Ok(reason) => Answer::Taken(entry, reason),
        Err(reason) => Answer::Refused(reason),
    }
}

const PAGED_REASON: &str = "warpgroups, and the copy engine out of pages; sequences long enough that fill \
                            the device";
const CHUNKED: &str = "a sequence's bits shall be its own, whatever is beside it: one kernel for all";

/// Whether a Hopper kernel solves a request on a cache that has been checked, which `portable` solves: where
/// one solves packed problems of as many queries and keys.
pub(crate) fn paged(d: &Decode<'_>, portable: &AttnInfo, on: &Capabilities) -> Answer<AttnInfo> {
    let p = d.problem();
    let want = (portable.dtype, portable.mask, portable.head_dim);
    let is_meant = |e: &&AttnInfo| is_meant(&e.contract, (e.dtype, e.mask, e.head_dim), want, on);
    let entry = HOPPERS_PAGED.iter().find(is_meant).map(|entry| (entry, entry.tile_m));
    let queries = p.packed.map_or(p.batch * p.seqlen_q, |[rows, _]| rows);
    let keys = d.cache.total_k.unwrap_or(p.batch.saturating_mul(p.seqlen_k));
    let least = paged_least(want.1, want.2);
    of_sequences(entry, [queries, keys], least, &p, on, |entry| match d.splits {
        Splits::Chunk(_) => Err(CHUNKED),
        _ => hopper_paged::takes(d, entry.tile_n).and(Ok(PAGED_REASON)),
    })
}

/// Whether a kernel is one of Hopper's, and this problem or card none for it.
pub(super) fn is_out_of_reach(symbol: &str, p: &Problem, on: &Capabilities) -> bool {
    let ours = HOPPERS.iter().any(|entry| entry.contract.symbol == symbol);
    ours && (p.alibi || !on.tensor_maps)
}

/// What takes 72 and 88 columns instead of kernels of 96: these are copied in panels of 32 columns, and where
/// rows begin within 32 bytes of memory the engine is slow at it. Two panels of 64 are faster though the
/// products have a third more columns (H200, 16 heads of 4096, D = 72: 1.17 full, 1.18 causal).
const WHOLE_PANELS: u32 = 128;

/// What the first line that holds means.
fn chosen(
    p: &Problem,
    mask: MaskKind,
    on: &Capabilities,
    workspace: u64,
) -> Option<(&'static AttnInfo, &'static Line)> {
    if p.alibi {
        return None;
    }
    // Where a portable kernel has fewer columns than any of these (32), these would compute twice as many.
    let held = |entries: &[AttnInfo]| {
        entries.iter().map(|e| e.head_dim).filter(|head_dim| *head_dim as usize >= p.head_dim).min()
    };
    let head_dim = held(HOPPERS).filter(|head_dim| held(PLANNED) == Some(*head_dim))?;
    let head_dim = if head_dim == 96 && !p.head_dim.is_multiple_of(16) { WHOLE_PANELS } else { head_dim };
    TABLE.iter().filter(|line| line.head_dim == head_dim && p.seqlen_k >= line.keys).find_map(|line| {
        let is_meant = |e: &&AttnInfo| {
            line.means(e) && (e.dtype, e.mask) == (p.dtype, mask) && line.masks.contains(&mask)
        };
        let entry = HOPPERS.iter().find(is_meant)?;
        let tiles = p.seqlen_q.div_ceil(entry.tile_m as usize) as u64 * (p.batch * p.heads_q) as u64;
        let fills = tiles.saturating_mul(100) >= u64::from(on.sms) * line.tiles_per_100_sms;
        let runs = entry.contract.target.runs_on(on.arch()) && entry.contract.smem_bytes <= on.smem_per_block;
        let divides = || {
            matches!(
                Split::of(p, entry, on),
                Ok(Some(split)) if split.slices() > 1 && split.workspace() <= workspace
            )
        };
        (fills && runs && (!line.splits || divides())).then_some((entry, line))
    })
}

impl Line {
    /// Whether it means this kernel, of its masks.
    fn means(&self, entry: &AttnInfo) -> bool {
        (entry.head_dim, entry.tile_m) == (self.head_dim, self.tile_m) && entry.splits == self.splits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_kernels_that_exist() {
        for line in TABLE {
            for (mask, dtype) in line.masks.iter().flat_map(|m| [(*m, DType::F16), (*m, DType::Bf16)]) {
                let named = HOPPERS.iter().filter(|e| line.means(e) && (e.dtype, e.mask) == (dtype, mask));
                assert_eq!(named.count(), 1, "{dtype:?} {mask:?} {} {}", line.head_dim, line.tile_m);
            }
        }
    }
}
