//! Schedules decode: computes the number of splits per sequence, the number of thread blocks, and the places
//! of partial results. All numbers follow from upper bounds, because the lengths live on the device. A
//! *share* of the device is the part that one work item needs: one thread block per key head and block of
//! rows.
use crate::place::Place;
use crate::request::Splits;
use crate::{Capabilities, DType, Error, Problem};
use spec::{AttnInfo, Counters, DecodeOrder, FastDiv, Integers, LEAST_KEYS, Partials};

/// If the device has fewer shares than this number, decode splits no sequence. Two thread blocks that take
/// half of a sequence each, and end at the same time, cost more than one thread block that takes the whole
/// sequence (H200, docs/performance-log.md).
const THRESHOLD: f32 = 2.25;
/// [`THRESHOLD`] for latent caches and for blocks of 8 rows on int8 caches. Their work items take many
/// instructions per byte, so an idle half of the device costs more than a merge.
const BUSY_THRESHOLD: f32 = 1.99;

/// If the grid has many waves, the number of splits is chosen for this part of the resident thread blocks. A
/// graph that was captured for many sequences and replays few still launches all its thread blocks. The idle
/// blocks need room beside the working blocks. Without this room, 2048 idle blocks waited for 8 sequences of
/// 4096 keys, and this wait was 9.9 of the launch's 45.6 us (H200).
const SHARE_OF_MANY_WAVES: f32 = 0.75;
/// Factor for finer splits if all unsplit sequences fit the device at once, with two thread blocks per SM:
/// without more splits, the device is short of thread blocks at the end. Time relative to coarser splits,
/// with 8 rows per thread block (H200):
///
/// | blocks per SM | sequences | time |
/// |---|---|---|
/// | 2 | 28 of 4096 keys | 0.87 to 0.94 |
/// | 2 | 32 of 64 to 8192 keys | 0.91 |
/// | 2 | 31 of 1024 keys and one of 32768 | 0.95 |
/// | 1 | 15 of 1024 keys and one of 32768 | 0.83 |
/// | 1 | 16 of 4096 keys, where every microsecond counts | 1.01 |
const FINER: f32 = 2.0;
/// Maximum number of shares per sequence after [`FINER`], if all sequences are equally long. These sequences
/// stay unsplit, and so do sequences that are a fourth longer, because they are below [`THRESHOLD`]. If such
/// sequences are split in two, they take 1.07 times as long.
const EVEN: f32 = 1.75;
/// Maximum of [`merge_rounds`] for which the last thread block of a sequence merges the sequence's splits.
/// With more rounds, a combine kernel merges them, whose thread blocks share the rows. Time of the kernels
/// in us (H100, one sequence):
///
/// | rounds | problem | last thread block | combine kernel |
/// |---|---|---|---|
/// | 1 | 32 query heads, 8 key heads, D = 128, 8192 keys | 21.0 | 21.9 |
/// | 2 | the same, 64 query heads, 4 queries, 32768 keys | 62.1 | 62.7 |
/// | 8 | MLA, 16 query heads, 1024 keys | 23.5 | 13.5 |
/// | 18 | 16 query heads, 1 key head, D = 128, 32768 keys | 25.1 | 20.1 |
/// | 72 | MLA, 16 query heads, 32768 keys | 113.7 | 35.2 |
const MOST_ROUNDS: u64 = 4;
/// Exclusive bound of the product of work items, key heads and blocks of rows. The device's arithmetic cannot
/// represent larger products.
const TOO_MANY: u64 = 1 << 30;

/// Returns the number of thread blocks in which an entry processes a sequence's rows of one key head. A
/// number of more than 32 bits becomes the largest number, which no schedule takes.
pub(crate) fn row_blocks(e: &AttnInfo, p: &Problem) -> u32 {
    u32::try_from(p.rows().div_ceil(e.tile_m as usize)).unwrap_or(u32::MAX)
}

/// Returns an upper bound of the keys that a decode kernel reads of one sequence. A kernel of a window begins
/// with the tile of 16 keys that has the first visible key.
pub(crate) fn most_seen_keys(p: &Problem) -> usize {
    let behind = (p.window().left as usize).saturating_add(p.seqlen_q).saturating_add(15);
    if p.variant.is_some() { p.seqlen_k } else { p.seqlen_k.min(behind) }
}

/// Returns the number of resident thread blocks of the entry per SM if each SM runs several, otherwise 0. One
/// block then loads while another searches its keys or combines. With several blocks per SM, 64 sequences
/// take 2 % less time, and 24 to 32 sequences up to 5 % less (H200).
pub(crate) fn at_once(e: &AttnInfo, p: &Problem, on: &Capabilities) -> u32 {
    let crowded = p.batch * p.heads_k * row_blocks(e, p) as usize > on.sms as usize;
    if crowded { on.blocks_per_sm(&e.contract) } else { 0 }
}

/// The splits of sequences, and their memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// The order of splits, without the address of the lengths.
    pub order: DecodeOrder,
    /// Maximum number of queries per sequence. In a mixed batch, the kernel takes the sequences of at most
    /// this number of queries.
    pub most: u32,
    /// The number of places for partial results; 1 without splits.
    slots: FastDiv,
    /// Rows of one sequence and key head.
    rows: u32,
    /// The number of columns of a split's row.
    columns: u64,
    /// Bytes of workspace; 0 without splits.
    pub workspace: u64,
    /// Bytes of counters, if the launch has counters.
    pub counters: u64,
    /// The combine kernel.
    pub combine: Place,
    /// Whether sequences stay unsplit only because the request has no workspace.
    pub lacks_workspace: bool,
}

impl Decode {
    /// Returns the schedule for launches with at most the allowed workspace.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are more work items than the device can count.
    pub fn new(
        p: &Problem,
        entry: &AttnInfo,
        on: &Capabilities,
        allows: impl Fn(u64) -> bool,
    ) -> Result<Self, Error> {
        let combine = spec::combine_of(entry)
            .ok_or_else(|| Error::unsupported(entry.contract.symbol, "no kernel combines its splits"))?;
        // The device divides the index of a row, so that the index has 31 bits.
        let rows = u32::try_from(p.rows()).ok().filter(|rows| *rows < 1 << 31).ok_or_else(|| {
            let feature = format_args!("{} rows (queries x query heads per key head)", p.rows());
            Error::unsupported(feature, "a launch counts a sequence's rows in 31 bits; split the queries")
        })?;
        let columns = u64::from(entry.head_dim_v);
        let row_bytes = p.heads_k as u64 * u64::from(rows) * (columns + 1) * 4;
        let at_most = |finest: f32| {
            order(p, on, entry, finest).map(|(order, slots)| (order, slots, u64::from(slots) * row_bytes))
        };
        let is_short = |workspace| p.decode_splits() == Splits::Auto && !allows(workspace);
        let (order, slots, workspace) = match at_most(FINER)? {
            (.., workspace) if is_short(workspace) => at_most(1.0)?,
            finer => finer,
        };
        // Sequences that may stay unsplit stay unsplit if there is no workspace.
        let whole = slots == 0 || is_short(workspace);
        let counters = (p.batch * p.heads_k) as u64 * u64::from(order.row_blocks.get()) * 4;
        let combines = merge_rounds(p, entry, slots) > MOST_ROUNDS;
        Ok(Decode {
            most: p.seqlen_q as u32,
            order: if whole { DecodeOrder { splits: 1, ..order } } else { order },
            slots: FastDiv::new(slots.max(1)).unwrap_or(FastDiv::ONE),
            rows,
            columns,
            workspace: if whole { 0 } else { workspace },
            counters: if whole || combines { 0 } else { counters },
            combine: Place::of(&combine),
            lacks_workspace: whole && slots > 0,
        })
    }

    /// Returns the places of partial results in a workspace at `address`.
    pub fn partials(&self, address: u64) -> Partials {
        let heads = self.order.kv_heads.get();
        let rows = u64::from(self.rows) * u64::from(heads) * u64::from(self.slots.get());
        let [rows_base, values_base] = match self.workspace {
            0 => [0; 2],
            _ => [address, address.wrapping_add(rows * self.columns * 4)],
        };
        Partials { rows_base, values_base, rows: self.rows, heads, slices: self.slots, reserved: 0 }
    }

    /// Returns the kernel parameter of the counters. Without splits or without counters, the parameter is
    /// empty.
    pub fn counters(&self, address: Option<u64>) -> Counters {
        let none = Counters { base: 0, count: 0, reserved: 0 };
        let count = (self.counters / 4) as u32;
        address.filter(|_| self.workspace > 0).map_or(none, |base| Counters { base, count, reserved: 0 })
    }
}

/// Returns how often a warp of a sequence's last thread block waits for loads if this block merges the
/// sequence's splits. All sequences have equal shares of `slots` splits. A warp merges 128 columns of a row
/// at a time, and has the loads of 16 splits in flight.
fn merge_rounds(p: &Problem, entry: &AttnInfo, slots: u32) -> u64 {
    let rows = (p.rows() as u64).min(entry.tile_m.into());
    let parts = rows * u64::from(entry.head_dim_v.div_ceil(128));
    let splits = u64::from(slots).div_ceil(p.batch as u64);
    parts.div_ceil(u64::from(entry.contract.threads / 32)) * splits.div_ceil(16)
}

/// Returns the order of splits, at most `finest` times finer than the device's shares, and the number of
/// places for partial results, or 0 without splits.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are more work items than the device can count.
fn order(p: &Problem, on: &Capabilities, entry: &AttnInfo, finest: f32) -> Result<(DecodeOrder, u32), Error> {
    let blocks_per_sm = on.blocks_per_sm(&entry.contract);
    let (sequences, heads, row_blocks) = (p.batch as u32, p.heads_k as u32, row_blocks(entry, p));
    let all = |each: u32| if each > 1 { sequences.saturating_mul(each) } else { 0 };
    let each = p.heads_k as u64 * u64::from(row_blocks);
    let resident = on.sms.saturating_mul(blocks_per_sm);
    let whole = resident as f32 / each as f32;
    // The device makes no more splits. One block is faster than two that share fewer keys than two times
    // `LEAST_KEYS`: a window of 128 keys on one sequence takes 4.3 us, in two splits 5.8 us (H100).
    let longest = match most_seen_keys(p) as u32 {
        short if short < 2 * LEAST_KEYS => 0,
        keys => all(keys.div_ceil(LEAST_KEYS)),
    };
    let is_busy = entry.is_latent() || entry.kv_dtype == DType::Int8 && entry.tile_m == 8;
    let threshold = if is_busy { BUSY_THRESHOLD } else { THRESHOLD };
    // Computes the maximum number of work items per row block and key head, and the number of places, if the
    // device has this number of shares.
    let bounds = |share: f32| match p.decode_splits() {
        Splits::Auto if share < threshold => (sequences, 0),
        // In dense tensors, all sequences have equal lengths. Below the threshold, no split pays.
        Splits::Auto if p.cache.is_none() && p.varlen.is_none() && share / (sequences as f32) < threshold => {
            (sequences, 0)
        }
        // The work items of all sequences fill the device, and each sequence has at least one work item.
        Splits::Auto => {
            ((sequences - 1 + share as u32).min(longest.max(sequences)), longest.min(share as u32))
        }
        Splits::Exactly(count) => (sequences * count, all(count)),
        Splits::Keys(keys) => {
            let most = all(p.seqlen_k.div_ceil(keys as usize) as u32);
            let total_k = p.cache.and_then(|cache| cache.total_k);
            let total = total_k.map_or(u64::MAX, |total| total as u64 / u64::from(keys));
            let slots = u64::from(most).min(total.saturating_add(u64::from(sequences))) as u32;
            (slots.max(sequences), slots)
        }
    };
    let waves = u64::from(bounds(whole).0) * each / u64::from(resident.max(1));
    let fits = u64::from(sequences) * each <= u64::from(resident) && at_once(entry, p, on) > 1;
    let share = match whole {
        _ if waves >= 4 && whole >= 4.0 => whole * SHARE_OF_MANY_WAVES,
        share if share >= threshold && fits && entry.tile_m == 8 && p.decode_splits() == Splits::Auto => {
            // The host rounds up to a whole number of shares, because the device may round up too. Each share
            // needs a place for a partial result.
            let finer = (EVEN * sequences as f32).min(whole * finest).floor();
            whole.max(finer)
        }
        _ => whole,
    };
    let (items, slots) = bounds(share);
    // If there are more sequences than one warp can add up, the device uses this bound instead of the sum.
    let bound = if sequences > 32 * 32 { u32::MAX >> 16 } else { items };
    if u64::from(bound) * each >= TOO_MANY {
        let feature = format_args!(
            "up to {bound} splits of {sequences} sequences, each with {heads} key heads and {row_blocks} \
             blocks of rows"
        );
        let reason = format_args!("a launch may have fewer than {TOO_MANY} in all; split the batch");
        return Err(Error::unsupported(feature, reason));
    }
    // One wave contains whole shares. The thread blocks of a sequence's key heads then run concurrently, and
    // read from DRAM rows that are already open. The hardware distributes the remaining blocks. For 128 work
    // items, 132 thread blocks take 1 to 3 % longer than 128 (H200).
    let (each, least) = (each as u32, sequences * each as u32);
    let wave = share as u32 * each;
    // With more than two waves of work items, the hardware distributes the items better than persistent
    // blocks with a fixed stride.
    let blocks = match items * each {
        items if u64::from(items) > 2 * u64::from(resident) => items,
        items if least <= wave => wave.min(items),
        items => resident.min(items),
    };
    let one = FastDiv::ONE;
    let (splits, chunk) = match p.decode_splits() {
        Splits::Auto => (0, one),
        Splits::Exactly(count) => (count, one),
        Splits::Keys(keys) => (0, FastDiv::new(keys).unwrap_or(one)),
    };
    let spread = if blocks_per_sm == 1 { wave / 2 } else { 0 };
    let order = DecodeOrder {
        lengths: Integers { base: 0, count: sequences, reserved: 0 },
        starts: Integers { base: 0, count: 0, reserved: 0 },
        max_keys: p.seqlen_k as u32,
        splits,
        chunk,
        kv_heads: FastDiv::new(heads).unwrap_or(one),
        row_blocks: FastDiv::new(row_blocks).unwrap_or(one),
        rows: entry.tile_m,
        share,
        threshold,
        blocks,
        // With fewer blocks than a wave, a larger distance would lead past the last block.
        spread: spread.min(blocks / 2),
    };
    Ok((order, slots))
}
