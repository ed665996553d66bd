//! Block masks: lists of the key blocks that each work tile takes. FlexAttention's `BlockMask` (Dong et al.,
//! 2024).
use crate::Integers;

/// Parameters of [`crate::BlockSparse`]: lists in device memory. The caller promises addresses and counts.
/// Kernels clamp every number that they read from the lists.
///
/// A tile of queries has two lists of block numbers: full blocks and partial blocks, in any order. If the end
/// of the keys cuts a block, this block must be partial, and the last block of its list. Lists may lie
/// anywhere in `blocks`, with gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMask {
    /// Four integers per tile, `[sequence][head][tile]`: the index in `blocks` where the tile's full blocks
    /// begin, their number, the index where its partial blocks begin, their number.
    pub tiles: Integers,
    /// Block numbers: block `n` has keys `n * tile[1]..(n + 1) * tile[1]` of the sequence.
    pub blocks: Integers,
    /// Sequences (1 if all sequences share their lists), query heads (1 if all heads share their lists),
    /// tiles of queries per sequence and head, key blocks per sequence. Shorter sequences leave tiles and
    /// blocks unused.
    pub shape: [u32; 4],
    /// Queries and keys of a block: `tile_m` and `tile_n` of the kernel.
    pub tile: [u32; 2],
}
contract::no_padding! {
    BlockMask { tiles, blocks, shape, tile }
}

impl BlockMask {
    /// Integers per tile in [`BlockMask::tiles`].
    pub const PER_TILE: u32 = 4;

    /// How many integers [`BlockMask::tiles`] and [`BlockMask::blocks`] need to have room for every list of a
    /// [`BlockMask::shape`]. Returns `None` if one of the two numbers is 2^31 or more.
    pub fn room([sequences, heads, tiles, blocks]: [u32; 4]) -> Option<[u32; 2]> {
        let count = sequences.checked_mul(heads)?.checked_mul(tiles)?;
        let room = [count.checked_mul(Self::PER_TILE)?, count.checked_mul(blocks)?.checked_mul(2)?];
        room.iter().all(|integers| *integers < 1 << 31).then_some(room)
    }

    /// The index of a tile of queries in lists of this shape. A sequence, head or tile that does not exist
    /// has the lists of the last sequence, head or tile.
    #[inline(always)]
    pub fn tile_index(&self, sequence: u32, head: u32, tile: u32) -> u32 {
        let [sequences, heads, tiles, _] = self.shape;
        let nearest = |i: u32, count: u32| i.min(count.wrapping_sub(1));
        let head = nearest(sequence, sequences).wrapping_mul(heads).wrapping_add(nearest(head, heads));
        head.wrapping_mul(tiles).wrapping_add(nearest(tile, tiles))
    }
}
