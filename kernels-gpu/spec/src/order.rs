//! Tile schedulers. The host computes the grid with them, and a thread block finds its work tiles with them.
use crate::FastDiv;

/// The order of work tiles. Within a group of heads, the last query blocks of all heads come first. With a
/// causal mask, the longest blocks then run first, so the last wave is short, and the group's keys and values
/// stay in the L2 cache.
///
/// Measured on an H200, causal, D = 128, S = 8192: 394 to 426 TFLOP/s, and 371 if the tiles run head by head
/// (docs/performance-log.md).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOrder {
    /// Number of query blocks per head.
    pub m_blocks: u32,
    /// Number of work tiles of the launch, below 2^31.
    pub tiles: u32,
    /// Number of query heads per batch.
    pub heads: FastDiv,
    /// Number of query heads per key head.
    pub heads_per_kv: FastDiv,
    /// Number of heads (over all batches) that run together.
    pub group: FastDiv,
    /// Number of work tiles per group: `m_blocks * group`.
    pub group_tiles: FastDiv,
    /// Number of blocks that the GPU runs at once: the grid of a persistent kernel.
    pub resident: u32,
}

/// Kernel parameters that contain the order of work tiles.
pub trait Scheduled: Copy {
    /// The order of work tiles.
    fn order(&self) -> &TileOrder;
    /// Number of blocks of the launch.
    fn blocks(&self) -> u32;
}

/// A work tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkTile {
    /// Index of the query block in the head.
    pub m_block: u32,
    /// Index of the batch.
    pub batch: u32,
    /// Index of the query head.
    pub head: u32,
    /// Index of the key/value head.
    pub kv_head: u32,
}

impl TileOrder {
    /// The order of `m_blocks` query blocks for each of `batch * heads_q` heads, in groups of `group` heads.
    /// Returns `None` if a number is zero, if `heads_k` does not divide `heads_q`, if `group` does not divide
    /// the number of all heads, or if there are 2^31 tiles or more.
    pub fn new(m_blocks: u32, batch: u32, heads_q: u32, heads_k: u32, group: u32) -> Option<Self> {
        let all_heads = batch.checked_mul(heads_q)?;
        let tiles = all_heads.checked_mul(m_blocks).filter(|t| *t > 0 && *t < 1 << 31)?;
        if heads_k == 0 || !heads_q.is_multiple_of(heads_k) || group == 0 || !all_heads.is_multiple_of(group)
        {
            return None;
        }
        Some(TileOrder {
            m_blocks,
            tiles,
            heads: FastDiv::new(heads_q)?,
            heads_per_kv: FastDiv::new(heads_q / heads_k)?,
            group: FastDiv::new(group)?,
            group_tiles: FastDiv::new(m_blocks.checked_mul(group)?)?,
            resident: u32::MAX,
        })
    }

    /// The order for a GPU that runs `blocks` blocks of the kernel at once; 0 counts as 1.
    pub fn resident(self, blocks: u32) -> Self {
        TileOrder { resident: blocks.max(1), ..self }
    }

    /// The work tile at index `index` of the order.
    #[inline(always)]
    pub const fn tile(&self, index: u32) -> WorkTile {
        let (group, within) = self.group_tiles.div_rem(index);
        let (from_last, member) = self.group.div_rem(within);
        self.of_head(group * self.group.get() + member, from_last)
    }

    /// The work tile of a head (counted over all batches) whose query block is `from_last` blocks before the
    /// last one.
    #[inline(always)]
    const fn of_head(&self, of_all_heads: u32, from_last: u32) -> WorkTile {
        let (batch, head) = self.heads.div_rem(of_all_heads);
        let (kv_head, _) = self.heads_per_kv.div_rem(head);
        WorkTile { m_block: self.m_blocks - 1 - from_last, batch, head, kv_head }
    }
}

/// The persistent tile scheduler. A block takes single work tiles or pairs. The indices of a block's single
/// tiles differ by the grid size. A pair is one tile from the end of a head and one tile from the start of
/// this head, or of the next head if heads have an odd number of tiles. With a causal mask, pairs give every
/// block equal work.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRounds {
    /// The order of single work tiles.
    pub order: TileOrder,
    /// Number of pairs of `paired` heads.
    pairs: FastDiv,
    /// Number of heads whose work tiles make pairs, 1 or 2; 0 if blocks take single work tiles.
    paired: u32,
}
contract::no_padding! {
    TileOrder { m_blocks, tiles, heads, heads_per_kv, group, group_tiles, resident }
    TileRounds { order, pairs, paired }
}

impl TileRounds {
    /// A scheduler of single work tiles.
    pub const fn single(order: TileOrder) -> Self {
        TileRounds { order, pairs: FastDiv::ONE, paired: 0 }
    }

    /// A scheduler of pairs of work tiles. Returns `None` if there is an odd number of work tiles.
    pub fn paired(order: TileOrder) -> Option<Self> {
        let paired = 1 + order.m_blocks % 2;
        let pairs = FastDiv::new(order.m_blocks * paired / 2).filter(|_| order.tiles.is_multiple_of(2))?;
        Some(TileRounds { order, pairs, paired })
    }

    /// Number of blocks of the launch: the blocks that the GPU runs at once, at most one per work tile (or
    /// pair).
    pub fn blocks(&self) -> u32 {
        (self.order.tiles >> self.paired.min(1)).min(self.order.resident)
    }

    /// The work tiles of block `block` of `blocks`.
    #[inline(always)]
    pub const fn of(self, block: u32, blocks: u32) -> OwnTiles {
        OwnTiles { rounds: self, block, blocks, round: 0 }
    }

    /// The work tile of block `block` in round `round`, if any.
    #[inline(always)]
    fn tile(&self, block: u32, blocks: u32, round: u32) -> Option<WorkTile> {
        let order = &self.order;
        if self.paired == 0 {
            let index = round * blocks + block;
            return (index < order.tiles).then(|| order.tile(index));
        }
        let pair = (round >> 1) * blocks + block;
        let (heads, at) = self.pairs.div_rem(pair);
        let (next, from_last) =
            if round & 1 == 0 { (0, at) } else { (self.paired - 1, order.m_blocks - 1 - at) };
        (pair * 2 < order.tiles).then(|| order.of_head(heads * self.paired + next, from_last))
    }
}

/// The work tiles of one persistent block, as an iterator.
pub struct OwnTiles {
    rounds: TileRounds,
    block: u32,
    blocks: u32,
    round: u32,
}

impl OwnTiles {
    /// The next work tile, if any. If `in_turns` is true, blocks of more than two tiles take the tiles of
    /// every second round in reverse: where the longest tiles come first, the first block would otherwise get
    /// the longest tile of each round.
    #[inline(always)]
    pub fn next(&mut self, in_turns: bool) -> Option<WorkTile> {
        let OwnTiles { rounds, block, blocks, round } = *self;
        self.round += 1;
        let turns = in_turns && !round.is_multiple_of(2) && rounds.order.tiles > 2 * blocks;
        let block = if turns { blocks - 1 - block } else { block };
        rounds.tile(block, blocks, round)
    }
}

impl Iterator for OwnTiles {
    type Item = WorkTile;
    #[inline(always)]
    fn next(&mut self) -> Option<WorkTile> {
        self.next(false)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_tile_once_longest_first() {
        for (m_blocks, batch, heads_q, heads_k, group) in
            [(1, 1, 1, 1, 1), (5, 2, 6, 3, 4), (3, 2, 8, 1, 16), (7, 3, 4, 4, 1)]
        {
            let order = TileOrder::new(m_blocks, batch, heads_q, heads_k, group).expect("valid");
            let tiles: std::vec::Vec<_> = (0..order.tiles).map(|i| order.tile(i)).collect();
            let distinct: HashSet<_> = tiles.iter().map(|t| (t.m_block, t.batch, t.head)).collect();
            assert_eq!(distinct.len() as u32, m_blocks * batch * heads_q);
            assert!(tiles.iter().all(|t| t.m_block < m_blocks && t.batch < batch && t.head < heads_q));
            assert!(tiles.iter().all(|t| t.kv_head == t.head / (heads_q / heads_k)));
            for members in tiles.chunks((m_blocks * group) as usize) {
                assert!(members.is_sorted_by(|a, b| a.m_block >= b.m_block));
            }
        }
    }

    #[test]
    fn blocks_share_the_tiles_and_pairs_cost_the_same() {
        for (m_blocks, batch, heads_q, heads_k, resident) in
            [(1, 1, 1, 1, 4), (6, 2, 6, 3, 5), (4, 3, 4, 4, 100), (7, 3, 4, 1, 3), (7, 3, 5, 1, 3)]
        {
            let order =
                TileOrder::new(m_blocks, batch, heads_q, heads_k, 1).expect("valid").resident(resident);
            let paired = TileRounds::paired(order);
            assert_eq!(paired.is_some(), order.tiles.is_multiple_of(2));
            for rounds in [Some(TileRounds::single(order)), paired].into_iter().flatten() {
                let blocks = rounds.blocks();
                let shares: std::vec::Vec<std::vec::Vec<_>> =
                    (0..blocks).map(|block| rounds.of(block, blocks).collect()).collect();
                assert!(shares.iter().all(|tiles| !tiles.is_empty()) && blocks <= resident);
                let distinct: HashSet<_> =
                    shares.iter().flatten().map(|t| (t.m_block, t.batch, t.head)).collect();
                assert_eq!(shares.iter().flatten().count() as u32, order.tiles);
                assert_eq!(distinct.len() as u32, order.tiles);
                assert!(shares.iter().flatten().all(|t| t.kv_head == t.head / (heads_q / heads_k)));
                if rounds.paired > 0 {
                    let twos = shares.iter().flat_map(|tiles| tiles.chunks(2));
                    assert!({ twos }.all(|two| two[0].m_block + two[1].m_block == m_blocks - 1));
                }
            }
        }
    }

    #[test]
    fn refuses_what_has_no_order() {
        for (m_blocks, batch, heads_q, heads_k, group) in [
            (0, 1, 1, 1, 1),
            (1, 0, 1, 1, 1),
            (1, 1, 6, 4, 1),
            (1, 1, 6, 0, 1),
            (1, 1, 6, 6, 4),
            (1 << 20, 1 << 10, 2, 1, 1),
        ] {
            assert_eq!(TileOrder::new(m_blocks, batch, heads_q, heads_k, group), None);
        }
    }
}
