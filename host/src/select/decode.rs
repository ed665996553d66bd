//! Which decode kernel solves a problem of few queries on many keys, in a cache or in tensors.
use super::{ASKED, Choice, Query};
use crate::problem::MAX_ROWS;
use crate::request::Splits;
use crate::schedule::{Decode, at_once, row_blocks};
use crate::{AttnInfo, Capabilities, Error, MaskKind, Problem, kernels};
use core::cmp::Reverse;
use spec::{DECODES, Keys, MAX_SEQUENCES, PageKind};

/// Pages of any size.
const ANY_PAGES: Keys = Keys::Cache(PageKind::Rows);

/// Whether there are decode kernels for the problem: few rows, as many for each sequence, without slopes, each
/// sequence's last query at its last key.
pub(super) fn takes(p: &Problem) -> bool {
    let counted = p.batch <= MAX_SEQUENCES as usize && p.batch.saturating_mul(p.seqlen_k) < 1 << 31;
    (p.cache.is_some() || counted && p.is_bottom_right()) && DECODES.iter().any(|entry| solves(entry, p))
}

const FEW: &str = "few queries on many keys: decode kernels read keys and values once for a key head's rows, and \
                   cut sequences by their keys";

/// Most queries of a sequence, most rows (queries times the query heads of a key head) and fewest keys for which
/// decode kernels are faster than work tiles of queries where keys and values are tensors.
///
/// Time of decode kernels, by that of work tiles (H200, bf16, L2 cold, 1 to 64 sequences of up to 4096 keys):
///
/// | head dim | heads | queries | from so many keys on | below |
/// |---|---|---|---|---|
/// | 64 | 16/2 | 1, 4 | 1024: 0.13 to 0.86 | 0.30 to 1.27 |
/// | 64 | 32/32 | 1, 4 | 1024: 0.70 to 0.96 | 1.05 to 1.19 |
/// | 64 | 32/32 | 16 | 1024: 0.73 to 1.09 | 1.14 to 1.41 |
/// | 128 | 32/8, 64/8 | 1 to 16 | 512: 0.21 to 0.89 | 0.17 to 1.21 |
/// | 128 | 32/32 | 1 to 16 | 512: 0.67 to 1.00 | 0.76 to 1.17 |
/// | 128 | 32/32 | 64 | 512: 0.69 to 1.64 | 0.98 to 1.81 |
/// | 256 | 16/16 | 1, 4 | 512: 0.23 to 0.93 | 0.63 to 0.92 |
/// | 256 | 16/16 | 16 | 512: 0.27 to 1.31 | 0.70 to 1.55 |
const fn most(head_dim: usize) -> [usize; 3] {
    match head_dim {
        0..=64 => [4, MAX_ROWS, 1024],
        65..=128 => [16, MAX_ROWS, 512],
        _ => [4, 8, 512],
    }
}

/// The decode kernel for keys and values in tensors, where it is the faster, or the one that has sinks. Without
/// the workspace that it asks for others are faster, unless sequences are so many that none is cut.
pub(super) fn on_tensors(q: &Query<'_>) -> Option<Choice> {
    let (p, on) = (q.problem, q.on);
    let [queries, rows, keys] = most(p.head_dim);
    let is_faster = p.seqlen_q <= queries && p.rows() <= rows && p.seqlen_k >= keys;
    if !takes(p) || !is_faster && !p.sinks {
        return None;
    }
    let choice = choose(p, on, None).ok().filter(|choice| p.sinks || q.takes(choice.kernel).is_ok())?;
    let schedule = Decode::new(p, choice.kernel, on, |bytes| q.scratch.allows(bytes)).ok()?;
    (p.sinks || !schedule.uncut).then_some(Choice { reason: FEW, ..choice })
}

/// Whether the entry solves the problem.
fn solves(e: &AttnInfo, p: &Problem) -> bool {
    let (kv_dtype, tiled) = p.cache.map_or((p.dtype, true), |cache| (cache.dtype, cache.tiled));
    let local = p.mask_kind() == MaskKind::Local;
    p.varlen.is_none()
        && !p.alibi
        && [e.dtype, e.kv_dtype] == [p.dtype, kv_dtype]
        && e.head_dim as usize >= p.head_dim
        && p.rows() <= MAX_ROWS
        && (e.mask == MaskKind::Local) >= local
        && (e.keys == ANY_PAGES || tiled)
}

/// Whether the entry may run where results are to be a sequence's own: its warps share keys as those of one
/// that takes any pages, so that these do not matter.
fn keeps_bits(e: &AttnInfo, p: &Problem, on: &Capabilities) -> bool {
    let kind = |e: &AttnInfo| ([e.dtype, e.kv_dtype], e.head_dim, e.tile_m, e.warps());
    let takes_any = |other: &AttnInfo| other.keys == ANY_PAGES && kind(other) == kind(e);
    !matches!(p.splits, Splits::Chunk(_))
        || DECODES.iter().any(|other| takes_any(other) && on.runs(&other.contract).is_ok())
}

/// Whether the entry does not hold rows at once that two SMs, or two thread blocks of one, had better share: 16
/// sequences of 8192 keys and 8 key heads with 32 rows take 170 us with the entry of 32, and 124 in two
/// thread blocks of 16; 32 of 1024 take 37 and 40 (H200). Chunks do not look at the batch.
fn suits(e: &AttnInfo, p: &Problem, on: &Capabilities) -> bool {
    let idle = p.batch * p.heads_k <= on.sms as usize;
    e.tile_m <= 16 || !idle || matches!(p.splits, Splits::Chunk(_))
}

/// Thread blocks of the entry that share a key head's rows; one, as good as one thread block, where they are so
/// few that each sequence may still have four splits: more rows are more work behind each copy, and the SMs
/// would do nothing. 4 queries of 4 heads on 2048, 4096 and 8192 keys take 9.1, 10.7 and 14.4 us in one of 16
/// rows, 7.2, 9.0 and 12.8 in two of 8; of 2 sequences on 4096 14.2 and 12.7, of 4 22.4 and 23.5. 8 queries
/// take 8.9, 10.6 and 14.4 in two of 16, 7.7, 10.0 and 14.7 in four of 8; of 2 sequences 14.3 and 20.7 (H200,
/// 8 key heads). On more keys what several read is many bytes of the L2 cache. Chunks do not look at the
/// batch.
fn cost(e: &AttnInfo, p: &Problem, on: &Capabilities) -> u32 {
    let blocks = row_blocks(e, p);
    let idle = p.batch * p.heads_k * blocks as usize * 4 <= on.sms as usize;
    let measured = blocks as usize * p.seqlen_k <= 16384;
    if idle && measured && !matches!(p.splits, Splits::Chunk(_)) { 1 } else { blocks }
}

/// Why the planner takes an entry.
fn reason(e: &AttnInfo, p: &Problem, on: &Capabilities) -> &'static str {
    let larger =
        |other: &&AttnInfo| other.tile_m > e.tile_m && other.head_dim == e.head_dim && solves(other, p);
    let one_block = DECODES.iter().filter(larger).any(|other| row_blocks(other, p) == 1);
    match row_blocks(e, p) {
        _ if at_once(e, p, on) > 1 => {
            "more blocks than SMs: an SM holds several, of which one loads while another looks for its keys"
        }
        2.. if one_block => "few sequences: smaller blocks share the rows, on SMs that would do nothing",
        2.. => "as many rows as a block holds, in several blocks that read the same keys",
        _ => "few rows: the smallest block that holds all of a key head's",
    }
}

/// The entry that was named, or the smallest of those that take the fewest thread blocks, as far as these
/// count, and of these the one of which an SM holds the most, where that counts.
///
/// # Errors
/// [`Error::Unsupported`] where none solves the problem on this device, [`Error::Invalid`] where the one that
/// was named does not.
pub(super) fn choose(p: &Problem, on: &Capabilities, config: Option<&str>) -> Result<Choice, Error> {
    if let Some(name) = config {
        let Some(entry) = kernels::decode(name) else {
            let expected =
                "it must be for caches: `ferroflash kernels --family decode`, or `paged`, lists them";
            return Err(Error::invalid("config", name, expected));
        };
        if !solves(entry, p) {
            let rows = p.rows();
            let expected =
                format_args!("it must hold {rows} rows of head_dim {}, mask and pages", p.head_dim);
            return Err(Error::invalid("config", name, expected));
        }
        on.runs(&entry.contract)?;
        return Ok(Choice::new(entry, ASKED));
    }
    let size = |e: &&AttnInfo| {
        let plain = [e.mask == MaskKind::Local, e.keys == ANY_PAGES];
        (e.head_dim, cost(e, p, on), e.tile_m, plain, Reverse(at_once(e, p, on)))
    };
    let fitting = DECODES.iter().filter(|e| solves(e, p) && keeps_bits(e, p, on) && suits(e, p, on));
    let runs = |e: &&AttnInfo| on.runs(&e.contract).is_ok();
    match fitting.clone().filter(runs).min_by_key(size).or_else(|| fitting.min_by_key(size)) {
        Some(entry) => {
            on.runs(&entry.contract)?;
            Ok(Choice::new(entry, reason(entry, p, on)))
        }
        None => {
            let feature = format_args!("decoding {p}");
            Err(Error::unsupported(feature, "no decode kernel has such a head_dim, mask and number of rows"))
        }
    }
}
