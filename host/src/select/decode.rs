//! Selection of decode kernels: few queries on many keys, in a KV cache or in tensors.
use super::{ASKED, Choice, Query, reads_cache, variant};
use crate::problem::MAX_ROWS;
use crate::request::Splits;
use crate::schedule::{Decode, at_once, most_seen_keys, row_blocks};
use crate::{AttnInfo, Capabilities, Error, MaskKind, Problem};
use core::cmp::Reverse;
use spec::{DECODES, Keys, MAX_SEQUENCES, PageKind};

/// A KV cache with pages of any size.
const ANY_PAGES: Keys = Keys::Cache(PageKind::Rows);

/// Returns whether decode kernels support the problem: few rows, equal query counts (in varlen tensors one
/// query each), no slopes, bottom-right alignment.
pub(super) fn takes(p: &Problem) -> bool {
    let counted = p.batch <= MAX_SEQUENCES as usize && p.batch.saturating_mul(p.seqlen_k) < 1 << 31;
    (p.cache.is_some() || counted && p.is_bottom_right()) && list(p).any(|entry| solves(entry, p))
}

const FEW: &str = "few queries on many keys: decode kernels read keys and values once for all rows of a key \
                   head, and split sequences";

/// Bounds for keys and values in tensors: the most queries per sequence, the most rows (queries x query heads
/// per key head) and the fewest keys. Within these bounds, decode kernels are faster than work tiles of
/// queries.
///
/// Time of decode kernels relative to that of work tiles (H200, bf16, L2 cold, 1 to 64 sequences of up to
/// 4096 keys):
///
/// | head dim | heads | queries | from this number of keys on | below |
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

/// Returns the decode kernel for keys and values in tensors, if it is faster or the request has sinks.
/// Without a workspace, other kernels are faster, unless there are enough sequences to fill the device
/// unsplit.
pub(super) fn on_tensors(q: &Query<'_>) -> Option<Choice> {
    let (p, on) = (q.problem, q.on);
    let [queries, rows, keys] = most(p.head_dim);
    // For varlen keys, the mean number of keys decides.
    let mean = p.varlen.map_or(p.seqlen_k, |[_, keys]| keys / p.batch);
    let is_faster = p.seqlen_q <= queries && p.rows() <= rows && mean >= keys;
    if !takes(p) || !is_faster && !p.sinks {
        return None;
    }
    let choice = choose(p, on, None).ok().filter(|choice| q.takes(choice.kernel).is_ok())?;
    let schedule = Decode::new(p, choice.kernel, on, |bytes| q.scratch.allows(bytes)).ok()?;
    (p.sinks || !schedule.lacks_workspace).then_some(Choice { reason: FEW, ..choice })
}

/// Returns the decode kernels of a problem's variant, or the table's decode kernels. A plan looks at the list
/// several times. (Plan of 8 sequences: 4.5 us with the whole table, 2.6 us with this part.)
fn list(p: &Problem) -> impl Iterator<Item = &'static AttnInfo> + Clone {
    variant::kernels_or(p, DECODES.iter()).filter(|e| e.decodes() && e.keys != Keys::Latent)
}

/// Returns the decode kernel with this symbol.
pub(super) fn by_name(p: &Problem, symbol: &str) -> Option<&'static AttnInfo> {
    list(p).find(|e| e.contract.symbol == symbol)
}

/// Returns whether the entry solves the problem.
fn solves(e: &AttnInfo, p: &Problem) -> bool {
    let (kv_dtype, tiled) = p.cache.map_or((p.dtype, true), |cache| (cache.dtype, cache.tiled));
    [e.dtype, e.kv_dtype] == [p.dtype, kv_dtype]
        && (p.varlen.is_none() || p.cache.is_none() && p.has_single_queries())
        && !p.alibi
        && p.has_columns_for(e)
        && p.rows() <= MAX_ROWS
        && variant::covers(e.mask, p.mask_kind(), true)
        && (e.scores.bias == p.bias || p.variant.is_some())
        && (e.keys == ANY_PAGES || tiled)
}

/// Returns whether the entry is batch-invariant for this problem. The entry's warps must split keys like the
/// warps of an entry for any pages, so that pages do not matter.
fn keeps_bits(e: &AttnInfo, p: &Problem, on: &Capabilities) -> bool {
    let kind = |e: &AttnInfo| ([e.dtype, e.kv_dtype], e.head_dim, e.tile_m, e.warps());
    let takes_any =
        |other: &AttnInfo| other.keys == ANY_PAGES && kind(other) == kind(e) && !other.is_for_short_work();
    !matches!(p.splits, Splits::Chunk(_))
        || list(p).any(|other| takes_any(other) && on.runs(&other.contract).is_ok())
}

/// Returns whether the entry fits the number of rows: false if two thread blocks should share its rows. With
/// 8 key heads of 32 rows (H200), one block of 32 rows is compared with two blocks of 16:
///
/// | sequences | one block | two blocks |
/// |---|---|---|
/// | 16 of 8192 keys | 170 us | 124 us |
/// | 32 of 1024 keys | 37 us | 40 us |
///
/// Chunks do not depend on the batch, so they ignore this rule.
fn suits(e: &AttnInfo, p: &Problem, on: &Capabilities) -> bool {
    let idle = p.batch * p.heads_k <= on.sms as usize;
    e.tile_m <= 16 || !idle || matches!(p.splits, Splits::Chunk(_))
}

/// Returns whether an entry suits the amount of work: true for every entry but those for short work. These
/// suit more work items than other kernels hold at once, of at most this number of keys each. The bound is
/// known at planning: the window, or the longest sequence that the request permits. Chunks do not depend on
/// the batch, so they ignore such entries. Times in us (H200, f16, 32 KiB instead of 96 KiB per block):
///
/// | head dim, heads | work | other kernels | kernels for short work |
/// |---|---|---|---|
/// | 64, 64/8 | 64, 256 sequences, window of 128 | 21.8, 84.7 | 11.4, 33.6 |
/// | 64, 64/8 | 64, 256 sequences, window of 1024 | 53.0, 184 | 37.7, 135 |
/// | 64, 64/8 | 64 of 512, 2048, 8192 keys | 30.6, 73.6, 246 | 22.3, 67.8, 243 |
/// | 64, 64/8 | 64 of 64 to 2048 keys | 43.5 | 47.0 |
/// | 64, 32/32 | 16, 128 of 128, 512 keys | 14.7, 186 | 8.8, 126 |
/// | 128, 32/8 | 64, 256 of 64 keys | 12.6, 43.7 | 10.3, 29.3 |
/// | 128, 32/8 | 64, 256 of 256 keys | 23.3, 76.4 | 21.7, 72.0 |
/// | 128, 32/8 | 24 of 256 keys (fewer work items) | 10.0 | 11.7 |
fn suits_length(e: &AttnInfo, p: &Problem, on: &Capabilities) -> bool {
    let longest = match e.head_dim {
        64 => 1024 + 16,
        _ => 320 + 16,
    };
    let ordinary = |o: &&AttnInfo| !o.is_for_short_work() && o.head_dim == e.head_dim && solves(o, p);
    let per_sm = || list(p).filter(ordinary).map(|o| on.blocks_per_sm(&o.contract)).max().unwrap_or(0);
    let items = p.batch * p.heads_k * row_blocks(e, p) as usize;
    !e.is_for_short_work()
        || p.splits == Splits::Auto && most_seen_keys(p) <= longest && items > (per_sm() * on.sms) as usize
}

/// Returns the cost of an entry: the number of thread blocks that share a key head's rows. If each sequence
/// can still have four splits, the number counts as one: more rows mean more work after each copy, and SMs
/// would idle. On more keys, the thread blocks that read the same keys read many bytes of the L2 cache.
/// Chunks do not depend on the batch, so they ignore this rule. Times in us (H200, 8 key heads, 4 query heads
/// per key head):
///
/// | queries | sequences x keys | larger blocks | smaller blocks |
/// |---|---|---|---|
/// | 4 | 1 x 2048, 4096, 8192 | 9.1, 10.7, 14.4 (one of 16 rows) | 7.2, 9.0, 12.8 (two of 8) |
/// | 4 | 2 x 4096 | 14.2 | 12.7 |
/// | 4 | 4 x 4096 | 22.4 | 23.5 |
/// | 8 | 1 x 2048, 4096, 8192 | 8.9, 10.6, 14.4 (two of 16 rows) | 7.7, 10.0, 14.7 (four of 8) |
/// | 8 | 2 x 4096 | 14.3 | 20.7 |
fn cost(e: &AttnInfo, p: &Problem, on: &Capabilities) -> u32 {
    let blocks = row_blocks(e, p);
    let idle = p.batch * p.heads_k * blocks as usize * 4 <= on.sms as usize;
    let measured = blocks as usize * p.seqlen_k <= 16384;
    if idle && measured && !matches!(p.splits, Splits::Chunk(_)) { 1 } else { blocks }
}

/// Returns the reason for an entry.
fn reason(e: &AttnInfo, p: &Problem, on: &Capabilities) -> &'static str {
    let larger =
        |other: &&AttnInfo| other.tile_m > e.tile_m && other.head_dim == e.head_dim && solves(other, p);
    let one_block = list(p).filter(larger).any(|other| row_blocks(other, p) == 1);
    match row_blocks(e, p) {
        _ if e.is_for_short_work() => {
            "many short sequences or windows: an SM holds twice the warps, because each warp mostly waits"
        }
        _ if at_once(e, p, on) > 1 => {
            "more blocks than SMs: an SM holds several, and one loads while another finds its keys"
        }
        2.. if one_block => "few sequences: smaller blocks split the rows, on SMs that would idle",
        2.. => "more rows than a block holds: several blocks read the same keys",
        _ => "few rows: the smallest block that holds all rows of a key head",
    }
}

/// Returns the named entry, or the best one. The best entry has the smallest head dim, then the lowest
/// [`cost`], then the fewest rows per thread block. Among these entries, an entry for short work comes first
/// (see [`suits_length`]), then an entry without a window mask if the problem needs none, then an entry for
/// tiled pages if possible, then the entry with the most resident blocks per SM.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or [`Error::Invalid`] if
/// the named kernel does not solve it.
pub(super) fn choose(p: &Problem, on: &Capabilities, config: Option<&str>) -> Result<Choice, Error> {
    if let Some(name) = config {
        let Some(entry) = by_name(p, name) else {
            let expected = "it must be a kernel for caches of keys and values (`mla` kernels read latent \
                            caches): `ferroflash kernels --family decode`, or `paged`, lists them";
            return Err(Error::invalid("config", name, expected));
        };
        reads_cache(entry, p)?;
        if !solves(entry, p) {
            let expected = format_args!(
                "it must be a kernel for {} rows (queries x query heads per key head), {}, and this mask and \
                 page size: `ferroflash kernels --family decode`",
                p.rows(),
                p.named_columns()
            );
            return Err(Error::invalid("config", name, expected));
        }
        on.runs(&entry.contract)?;
        return Ok(Choice::new(entry, ASKED));
    }
    let size = |e: &&AttnInfo| {
        let plain = [e.mask == MaskKind::Local, e.keys == ANY_PAGES];
        let ordinary = !e.is_for_short_work();
        (e.head_dim, cost(e, p, on), e.tile_m, ordinary, plain, Reverse(at_once(e, p, on)))
    };
    let fitting =
        list(p).filter(|e| solves(e, p) && keeps_bits(e, p, on) && suits(e, p, on) && suits_length(e, p, on));
    let runs = |e: &&AttnInfo| on.runs(&e.contract).is_ok();
    match fitting.clone().filter(runs).min_by_key(size).or_else(|| fitting.min_by_key(size)) {
        Some(entry) => {
            on.runs(&entry.contract)?;
            Ok(Choice::new(entry, reason(entry, p, on)))
        }
        None => {
            let feature = format_args!("decoding {p}");
            Err(Error::unsupported(
                feature,
                "no decode kernel supports this head_dim, mask and number of rows",
            ))
        }
    }
}
