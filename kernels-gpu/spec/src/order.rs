//! Which thread block does which tile: the host's grid and the device's reading of it, side by side.
use crate::FastDiv;

/// The order in which tiles are taken. Within a group of heads the last query block of every head comes
/// first: causal blocks are longest first, so that the last wave is short, and the group's keys and values
/// stay in the L2 cache.
///
/// Measured on an H200, causal, D = 128, S = 8192: 371 to 394..426 TFLOP/s against head by head
/// (docs/performance-log.md).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOrder {
    /// Query blocks of a head.
    pub m_blocks: u32,
    /// Tiles of the launch, below 2^31.
    pub tiles: u32,
    /// Query heads of a batch.
    pub heads: FastDiv,
    /// Query heads that share a key/value head.
    pub heads_per_kv: FastDiv,
    /// Heads (over all batches) that run together.
    pub group: FastDiv,
    /// Tiles of a group: `m_blocks * group`.
    pub group_tiles: FastDiv,
    /// Blocks that the card holds at once: the grid of a persistent kernel.
    pub resident: u32,
}

/// One tile of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkTile {
    /// Query block of the head.
    pub m_block: u32,
    /// Batch.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Key/value head.
    pub kv_head: u32,
}

impl TileOrder {
    /// `m_blocks` query blocks for each of `batch * heads_q` heads, `group` heads at a time. `None` where a
    /// number is zero, the heads do not divide (`heads_q` by `heads_k`, all heads by `group`), or there
    /// are 2^31 tiles or more.
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

    /// The same for a card that holds `blocks` blocks of the kernel at once; 0 counts as 1.
    pub fn resident(self, blocks: u32) -> Self {
        TileOrder { resident: blocks.max(1), ..self }
    }

    /// The tile that is `index`-th in order.
    #[inline(always)]
    pub const fn tile(&self, index: u32) -> WorkTile {
        let (group, within) = self.group_tiles.div_rem(index);
        let (from_last, member) = self.group.div_rem(within);
        let (batch, head) = self.heads.div_rem(group * self.group.get() + member);
        let (kv_head, _) = self.heads_per_kv.div_rem(head);
        WorkTile { m_block: self.m_blocks - 1 - from_last, batch, head, kv_head }
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
