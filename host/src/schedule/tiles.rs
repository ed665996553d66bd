//! Schedules work tiles of queries: computes the order of the tiles, and the number of thread blocks.
use super::Split;
use crate::request::{Mask, Prefix};
use crate::{Capabilities, Contract, Error, Problem};
use spec::{
    AttnInfo, Isa, MaskKind, NumberTiles, Sequences, TileOrder, TileRounds, TileScheduler, Window, WorkTile,
};

/// The distribution of work tiles over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiles {
    /// The tiles of persistent thread blocks; other kernels use only the order.
    pub rounds: TileRounds,
    /// The distribution of query blocks over sequences, or `None` for dense tensors.
    pub sequences: Option<Sequences>,
    /// In a mixed batch, the decode kernel takes the sequences of at most this number of queries, and a
    /// kernel numbers the tiles of the others.
    pub few: Option<u32>,
    /// Splits, if several thread blocks share a tile's keys.
    pub split: Option<Split>,
    /// Thread blocks.
    pub blocks: u32,
}

/// Work tiles of a block that leaves a state. States are for rings, whose transfers hold SMs: the other SMs
/// take the next blocks. Persistent blocks would wait for these SMs (2 H200s, 32 heads of 65536, causal: 28.0
/// ms, and 25.0 with 2 tiles per block).
const TILES_OF_STATE: u32 = 2;

impl Tiles {
    /// Returns the work tiles of a kernel for tensors.
    pub fn on_tensors(p: &Problem, entry: &AttnInfo, on: &Capabilities) -> Result<Self, Error> {
        let p = &in_shares(p, entry);
        let (order, sequences) = order(p, entry, on)?;
        let split = Split::new(p, entry, on)?;
        if entry.splits && split.is_none() {
            return Err(Error::unsupported(entry.contract.symbol, "no kernel combines its splits"));
        }
        let single = TileRounds::single(order);
        let (rounds, blocks) = match (entry.isa, entry.is_varlen()) {
            (Isa::Sm80, _) => {
                let persistent = entry.scheduler == TileScheduler::Persistent;
                let most = if persistent { order.resident } else { u32::MAX };
                let splits = split.map_or(1, |split| split.splits());
                (single, order.tiles.saturating_mul(splits).min(most))
            }
            (Isa::Sm90a, false) => {
                let rounds = rounds(p, entry.mask, entry.tile_m, order, |m_block| m_block);
                let most = match p.leaves_state() {
                    true => order.tiles.div_ceil(TILES_OF_STATE).max(order.resident),
                    false => order.resident,
                };
                let splits = split.map(|split| order.tiles.saturating_mul(split.splits()).min(most));
                (rounds, splits.unwrap_or_else(|| rounds.blocks()))
            }
            (Isa::Sm90a, true) => {
                let most = [p.seqlen_q, p.seqlen_k].map(|most| p.batch.saturating_mul(most));
                let equal = p.varlen == Some(most);
                let of = (&entry.contract, entry.mask, entry.tile_m);
                let rounds = varlen_rounds(equal, p, of, order, sequences, on);
                (rounds, rounds.blocks())
            }
        };
        Ok(Tiles { rounds, sequences, few: None, split, blocks })
    }

    /// Returns the work tiles of a kernel for KV caches. In a mixed batch, another kernel takes the sequences
    /// of at most `few` queries.
    pub fn on_cache(
        p: &Problem,
        entry: &AttnInfo,
        few: Option<u32>,
        on: &Capabilities,
    ) -> Result<Self, Error> {
        let p = &in_shares(p, entry);
        let [[_, rows, ..], ..] = p.shapes();
        let varlen = |rows: usize| match few {
            None => varlen_order(p, rows, entry.tile_m, on),
            Some(most) => mixed_sequences(p, entry, most, on),
        };
        let of = (&entry.contract, entry.mask, entry.tile_m);
        if entry.has_maps() {
            // A batch with equal query counts is handled as varlen, because its tensor maps have one batch.
            let [queries, _] = p.totals();
            let (sequences, order) = varlen(queries)?;
            // The host knows the number of keys only for a single sequence, or if all sequences have the
            // maximum number.
            let most = |most: usize| p.batch.saturating_mul(most);
            let known = p.batch == 1 || p.cache.and_then(|cache| cache.total_k) == Some(most(p.seqlen_k));
            let equal = known && queries == most(p.seqlen_q);
            let rounds = match few {
                Some(_) => TileRounds::single(mixed_order(queries, entry, order, on)),
                None => varlen_rounds(equal, p, of, order, Some(sequences), on),
            };
            let blocks = rounds.blocks();
            return Ok(Tiles { rounds, sequences: Some(sequences), few, split: None, blocks });
        }
        let (sequences, order) = match p.varlen {
            Some(_) => varlen(rows),
            None => {
                let counts = [p.batch, p.seqlen_q, rows].map(|n| n as u32);
                let sequences = Sequences::new(counts[0], counts[1], counts[2], entry.tile_m);
                let order = sequences.and_then(|(sequences, _)| {
                    let m_blocks = counts[1].div_ceil(entry.tile_m);
                    Some((sequences, tile_order(p, m_blocks, p.batch, on)?))
                });
                order.ok_or_else(|| too_many_sequences(p, rows))
            }
        }?;
        let rounds = TileRounds::single(order);
        Ok(Tiles { rounds, sequences: Some(sequences), few, split: None, blocks: order.tiles })
    }

    /// Returns the bytes of workspace: for the results of splits, or for the numbers of a mixed batch's
    /// tiles.
    pub const fn workspace(&self) -> u64 {
        match (&self.split, self.few, &self.sequences) {
            (Some(split), ..) => split.workspace(),
            (None, Some(_), Some(sequences)) => numbers_bytes(sequences.count),
            (None, ..) => 0,
        }
    }

    /// Returns the order of tiles.
    pub const fn order(&self) -> &TileOrder {
        &self.rounds.order
    }
}

/// Returns the bytes for the numbers of a mixed batch's tiles.
pub(crate) const fn numbers_bytes(sequences: u32) -> u64 {
    (sequences as u64 + 1) * 4
}

/// Returns the problem with a head for each share of a head's columns.
fn in_shares(p: &Problem, entry: &AttnInfo) -> Problem {
    Problem { heads_q: p.heads_q.saturating_mul(entry.shares() as usize), ..*p }
}

/// Returns the order of work tiles, and for varlen sequences their query blocks.
fn order(p: &Problem, entry: &AttnInfo, on: &Capabilities) -> Result<(TileOrder, Option<Sequences>), Error> {
    if entry.is_varlen() {
        let [[_, rows, ..], ..] = p.shapes();
        return varlen_order(p, rows, entry.tile_m, on).map(|(sequences, order)| (order, Some(sequences)));
    }
    let m_blocks = p.seqlen_q.div_ceil(entry.tile_m as usize);
    let order = tile_order(p, m_blocks as u32, p.batch, on).ok_or_else(|| {
        let feature = format_args!("{m_blocks} query blocks for each of {} x {} heads", p.batch, p.heads_q);
        Error::unsupported(feature, "a launch may have less than 2^31 thread blocks; split the batch")
    })?;
    Ok(match entry.scheduler {
        TileScheduler::Persistent => (order.resident(resident(&entry.contract, on)), None),
        _ => (order, None),
    })
}

/// Returns the number of a kernel's thread blocks that the device holds at once.
pub(super) fn resident(contract: &Contract, on: &Capabilities) -> u32 {
    on.sms.saturating_mul(on.blocks_per_sm(contract))
}

fn tile_order(p: &Problem, m_blocks: u32, batches: usize, on: &Capabilities) -> Option<TileOrder> {
    let [heads_q, heads_k] = [p.heads_q, p.heads_k].map(|heads| heads as u32);
    let group = group(&Problem { batch: batches, ..*p }, on);
    TileOrder::new(m_blocks, batches as u32, heads_q, heads_k, group)
}

/// Returns the query blocks of varlen sequences with `rows` rows in all, in tiles of `tile_m`, and the order
/// of the work tiles of all heads.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many thread blocks.
fn varlen_order(
    p: &Problem,
    rows: usize,
    tile_m: u32,
    on: &Capabilities,
) -> Result<(Sequences, TileOrder), Error> {
    let sequences = Sequences::new(p.batch as u32, p.seqlen_q as u32, rows as u32, tile_m);
    let order =
        sequences.and_then(|(sequences, m_blocks)| Some((sequences, tile_order(p, m_blocks, 1, on)?)));
    order.ok_or_else(|| too_many_sequences(p, rows))
}

/// Returns the query blocks of a mixed batch's sequences of more than `most` queries, and the order of the
/// work tiles of all heads.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are more query blocks than a kernel can count.
fn mixed_sequences(
    p: &Problem,
    entry: &AttnInfo,
    most: u32,
    on: &Capabilities,
) -> Result<(Sequences, TileOrder), Error> {
    let [[_, rows, ..], ..] = p.shapes();
    let most_tiles = NumberTiles::most(p.batch as u32, rows as u32, entry.tile_m, most);
    // Head by head, each head's tiles that do not exist would lie between those that exist, in gaps of
    // persistent blocks' strides.
    let of_one = Problem { batch: 1, ..*p };
    let group = if entry.has_maps() { head_group(&of_one, on) } else { group(&of_one, on) };
    let [heads_q, heads_k] = [p.heads_q, p.heads_k].map(|heads| heads as u32);
    let order = most_tiles.and_then(|(sequences, m_blocks)| {
        Some((sequences, TileOrder::new(m_blocks, 1, heads_q, heads_k, group)?))
    });
    order.ok_or_else(|| too_many_sequences(p, rows))
}

fn too_many_sequences(p: &Problem, rows: usize) -> Error {
    let feature = format_args!("{rows} rows of {} sequences and {} heads", p.batch, p.heads_q);
    let reason = "a launch may have less than 2^31 thread blocks and 2^30 sequences; split the batch";
    Error::unsupported(feature, reason)
}

/// Returns the number of heads in one group. The keys and values of these heads fit the L2 cache, and the
/// longest work tiles of the group run first. If all work tiles are equally long, a group gains nothing, and
/// the order head by head keeps the cache warmer.
fn group(p: &Problem, on: &Capabilities) -> u32 {
    let window = p.window();
    // The host does not know the caller's own mask. Equally long work tiles lose little in groups.
    let equally_long = p.mask_kind() != MaskKind::Own
        && (window.right == Window::UNBOUNDED || window.left != Window::UNBOUNDED);
    // Sequences often share a bias. If their heads run together, they share its reads in the L2 cache too.
    let shares = p.bias.is_some() && p.batch > 1;
    if equally_long && !shares { 1 } else { head_group(p, on) }
}

/// Returns the number of query heads whose keys and values fill at most 60 % of the L2 cache (36 MiB on an
/// H200: docs/performance-log.md). The result divides the number of heads.
fn head_group(p: &Problem, on: &Capabilities) -> u32 {
    // Caches of eight bits were not measured: they count as caches of the queries' dtype.
    let kv_bytes = p.seqlen_k as u64 * (p.head_dim + p.head_dim_v) as u64 * p.dtype.bytes() as u64;
    let kv_heads = (on.l2_bytes.saturating_mul(3) / 5 / kv_bytes).max(1);
    let all_heads = (p.batch * p.heads_q) as u64;
    let limit = kv_heads.saturating_mul((p.heads_q / p.heads_k) as u64);
    let pairs = (1..).take_while(|d| d * d <= all_heads).filter(|d| all_heads.is_multiple_of(*d));
    pairs.flat_map(|d| [d, all_heads / d]).filter(|group| *group <= limit).max().unwrap_or(1) as u32
}

/// The number of tiles per persistent thread block, if sequences may have different lengths.
const TILES: u32 = 2;

/// Returns the distribution of a kernel's tiles over persistent thread blocks, by mask and query count. If
/// all sequences are `equal`ly long, the rule for batches applies. Otherwise the host does not know the
/// tiles' costs: each thread block then takes few tiles, and the hardware gives the next thread block to a
/// free SM.
fn varlen_rounds(
    equal: bool,
    p: &Problem,
    (contract, mask, tile_m): (&Contract, MaskKind, u32),
    order: TileOrder,
    sequences: Option<Sequences>,
    on: &Capabilities,
) -> TileRounds {
    let each = sequences.filter(|_| equal).map(|sequences| sequences.each.get());
    let Some(each) = each else {
        return TileRounds::single(order.resident(order.tiles.div_ceil(TILES)));
    };
    let order = order.resident(resident(contract, on));
    rounds(p, mask, tile_m, order, |m_block| m_block % each)
}

/// The least number of rounds of a mixed batch's tiles over the SMs for which the hardware distributes them.
const MANY_ROUNDS: u32 = 16;

/// Returns the order of a mixed batch's tiles for its number of thread blocks. The tiles that exist come
/// first. A block skips the others faster than another block starts, so each SM has one block. If at least
/// half of the tiles may exist and there are many rounds, the hardware distributes blocks of [`TILES`] tiles.
///
/// Measured on an H200: two requests' time, divided by the mixed batch's.
///
/// | mixed batch | tiles, of which empty | one block per SM | blocks of two tiles |
/// |---|---|---|---|
/// | 16 x 1 on 32k and 4 x 1024 on 8k, 64/8 heads | 3328, 1280 | 0.90 (H100, before tiles had numbers) | 0.97 |
/// | 8 x 1 on 1k and 2 x 2k, 32/8 heads | 1344, 320 | 0.90 | 0.84 |
fn mixed_order(queries: usize, entry: &AttnInfo, order: TileOrder, on: &Capabilities) -> TileOrder {
    let at_once = resident(&entry.contract, on);
    let full = queries / entry.tile_m as usize;
    let balances = 2 * full >= order.m_blocks as usize && order.tiles / MANY_ROUNDS >= at_once;
    order.resident(if balances { order.tiles.div_ceil(TILES) } else { at_once })
}

/// If the keys and values of all heads do not fit the L2 cache, blocks take pairs of tiles up to this ratio
/// of the longest block's keys, pairs / single tiles: in pairs, all blocks are at the same heads at any time,
/// so the cache serves more of their reads. H100, causal, keys of 192 columns, 128 heads of 8192: the ratio
/// is 1.016, and pairs take 3.80 and 4.04 ms instead of 4.59 and 4.42 ms.
const PAIRED: (u64, u64) = (21, 20);

/// Returns the work tiles of `tile_m` queries of each persistent thread block. With a causal mask, a prefix
/// or chunks, a block takes tiles in pairs, a long and a short one, so that all blocks have equal work (H200,
/// causal, 16 heads of 2048, D = 128: faster than longest first). If pairs give some block more work than
/// single tiles would, and more than [`PAIRED`] allows, blocks take single tiles. For example, 17 heads of
/// 2048 are 136 pairs for 132 SMs.
///
/// `of_sequence` converts the index of a query block to its index within the sequence.
fn rounds(
    p: &Problem,
    mask: MaskKind,
    tile_m: u32,
    order: TileOrder,
    of_sequence: impl Fn(u32) -> u32,
) -> TileRounds {
    let single = TileRounds::single(order);
    // The bounds of a caller's own mask never fall, so that later tiles have more keys if the mask is causal.
    let grows = matches!(mask, MaskKind::Causal | MaskKind::Prefix | MaskKind::Chunked | MaskKind::Own);
    let paired = grows.then(|| TileRounds::paired(order)).flatten();
    // With many rounds, one more round costs little. In this case, the function does not count the keys of
    // the rounds, because counting takes time.
    let counts = u64::from(order.tiles) <= 64 * u64::from(order.resident);
    let keys = |tile: WorkTile| keys_of_tile(p, mask, u64::from(of_sequence(tile.m_block)), tile_m.into());
    let most = |rounds: &TileRounds| longest(*rounds, keys);
    let fits_l2 = order.group.get() == order.tiles / order.m_blocks;
    let (pairs, singles) = if fits_l2 { (1, 1) } else { PAIRED };
    let worth = |paired: &TileRounds| most(paired) * singles <= most(&single) * pairs;
    paired.filter(|paired| !counts || worth(paired)).unwrap_or(single)
}

/// Returns the number of keys that the queries of a work tile see. A sequence's first query sees the keys
/// before it.
fn keys_of_tile(p: &Problem, mask: MaskKind, m_block: u64, tile_m: u64) -> u64 {
    let first = m_block * tile_m + p.seqlen_k.saturating_sub(p.seqlen_q) as u64;
    let end = first + tile_m;
    match (mask, p.mask) {
        (MaskKind::Prefix, Mask::Prefix(Prefix::All(keys))) => end.max(keys.into()),
        (MaskKind::Chunked, Mask::Chunked { chunk }) => {
            end - first / u64::from(chunk.max(1)) * u64::from(chunk)
        }
        _ => end,
    }
}

/// Returns the maximum number of keys per thread block, if a tile takes `keys` keys.
fn longest(rounds: TileRounds, keys: impl Fn(WorkTile) -> u64) -> u64 {
    let blocks = rounds.blocks();
    (0..blocks).map(|block| rounds.of(block, blocks).map(&keys).sum()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{Class, Isa};

    #[test]
    fn causal_tiles_run_in_pairs_unless_pairs_cost_much_more() {
        // Query heads, heads that run together, queries, and whether an H100's blocks take tiles of 128
        // queries in pairs.
        for (heads, group, queries, pairs) in [
            (16, 16, 2048, true),
            // The longest block has 1.6 % more keys than with single tiles.
            (128, 4, 8192, true),
            (128, 8, 4096, true),
            // The longest block would have 5 % more keys, and the keys of all heads fit the L2 cache.
            (32, 32, 2560, false),
            // 136 pairs for 132 SMs.
            (17, 17, 2048, false),
            // A head has 15 tiles, so two heads have 15 pairs.
            (16, 16, 2048 - 128, true),
            (64, 16, 8192 - 128, true),
            // An odd number of tiles in all.
            (17, 17, 2048 - 128, false),
        ] {
            let p = Problem::new(crate::DType::Bf16, 1, queries, heads, 128).mask(Mask::Causal);
            let order = TileOrder::new(queries as u32 / 128, 1, heads as u32, heads as u32, group);
            let order = order.expect("valid").resident(132);
            let expected = TileRounds::paired(order).filter(|_| pairs).unwrap_or(TileRounds::single(order));
            let chosen = rounds(&p, MaskKind::Causal, 128, order, |m_block| m_block);
            assert_eq!(chosen, expected, "{heads} heads of {queries}");
        }
    }

    #[test]
    fn mixed_batches_of_many_full_tiles_leave_the_distribution_to_the_hardware() {
        let on = Capabilities::profile("h100").expect("a card");
        let entry = spec::plain(Isa::Sm90a, Class::Paged).find(|e| e.head_dim == 128).expect("a kernel");
        // Rows of Q, query blocks per head, query heads, and the launch's thread blocks.
        for (rows, m_blocks, heads, blocks) in [
            (16 + 4 * 1024, 52, 64, 52 * 64 / 2),
            (8 + 2 * 2048, 42, 32, 132),
            (128 + 1536, 142, 32, 132),
            (64 + 2 * 512, 74, 64, 132),
            (1, 1, 1, 1),
        ] {
            let order = TileOrder::new(m_blocks, 1, heads, 1, 1).expect("valid");
            let rounds = TileRounds::single(mixed_order(rows, entry, order, on));
            assert_eq!(rounds.blocks(), blocks, "{rows} rows");
        }
    }
}
