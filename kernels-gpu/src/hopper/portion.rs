//! What of a problem a tile is of.
use crate::mask::{BlockRange, Rows};
use spec::{HopperParams, WorkTile};
use tile::GlobalVec;

/// A tile of queries, whose they are, and where they and their keys lie.
pub trait Portion: Copy {
    /// Whether its queries may have no key at all.
    const MAY_LACK_KEYS: bool;

    /// Its rows, of which a tile has `tile_m`.
    fn rows(&self, p: &HopperParams, tile_m: u32) -> Rows;
    /// Its share of the key blocks that the tile sees.
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        range
    }
    /// Where query `row` of them all is.
    fn queries(&self, row: u32) -> [u32; 3];
    /// Where key `row` of them all is.
    fn keys(&self, row: u32) -> [u32; 3];
    /// Log-sum-exp of all its queries.
    fn lse(&self, p: &HopperParams) -> GlobalVec;
}

/// A tile of a head of a batch, by row, head, batch.
impl Portion for WorkTile {
    const MAY_LACK_KEYS: bool = false;

    #[inline(always)]
    fn rows(&self, p: &HopperParams, tile_m: u32) -> Rows {
        let WorkTile { m_block, batch, head, .. } = *self;
        let first = m_block * tile_m;
        Rows { first, tile: tile_m, q_len: p.q_len, k_len: p.k_len, window: p.window, of: [batch, head] }
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> [u32; 3] {
        [row, self.head, self.batch]
    }

    #[inline(always)]
    fn keys(&self, row: u32) -> [u32; 3] {
        [row, self.kv_head, self.batch]
    }

    #[inline(always)]
    fn lse(&self, p: &HopperParams) -> GlobalVec {
        GlobalVec::of(&p.lse, self.batch, self.head, p.q_len)
    }
}
