//! A work tile's list of key blocks, from a [`BlockMask`]. No other file reads these lists.
//!
//! The host has not checked the numbers in a list. This file clamps each of them. With any numbers, a loop
//! over the list ends, and each block has keys that exist.
use core::cell::Cell;
use spec::{BlockMask, Element, Integers};
use tile::Warp;
use tile::copy::TileWalk;
use tile::global::GlobalInts;

/// A list of key blocks: full blocks, then partial blocks. A loop goes through the positions of the list like
/// through key blocks: from the last position down to position 0.
#[derive(Clone, Copy, Debug)]
pub struct BlockList {
    /// The numbers of all lists.
    numbers: Integers,
    /// The distance from a position to its place in `numbers`, for full blocks and for partial blocks.
    offsets: [u32; 2],
    /// Number of full blocks.
    full: u32,
    /// Number of blocks.
    count: u32,
    /// Number of keys of a block, and number of keys of the sequence.
    keys: [u32; 2],
}

impl BlockList {
    /// The list of a sequence, head and tile of queries. Blocks have `tile_n` keys of the sequence's `keys`.
    #[inline(always)]
    pub fn load(mask: &BlockMask, [sequence, head, m_block]: [u32; 3], [tile_n, keys]: [u32; 2]) -> Self {
        let index = mask.tile_index(sequence, head, m_block);
        let (tiles, at) = (GlobalInts::new(&mask.tiles), index.wrapping_mul(BlockMask::PER_TILE));
        let [first_full, full, first_partial, partial] =
            [0, 1, 2, 3].map(|i| tiles.get(at.wrapping_add(i)) as u32);
        let most = keys.div_ceil(tile_n).min(mask.blocks.count());
        let full = full.min(most);
        let count = full + partial.min(most - full);
        let offsets = [first_full, first_partial.wrapping_sub(full)];
        BlockList { numbers: mask.blocks, offsets, full, count, keys: [tile_n, keys] }
    }

    /// An equal list that ptxas may keep in uniform registers.
    #[inline(always)]
    pub fn uniform(self, warp: Warp) -> Self {
        let [full, count] = [self.full, self.count].map(|x| warp.uniform(x));
        BlockList { offsets: self.offsets.map(|x| warp.uniform(x)), full, count, ..self }
    }

    /// Number of full blocks, which have the first positions, and number of all blocks.
    #[inline(always)]
    pub fn counts(&self) -> [u32; 2] {
        [self.full, self.count]
    }

    /// The number of the block at position `at`. Only the last position may have a block that the end of the
    /// keys cuts, so that all later copies are whole. All other positions have whole blocks.
    #[inline(always)]
    pub fn number(&self, at: u32) -> u32 {
        let [tile_n, keys] = self.keys;
        let offset = if at < self.full { self.offsets[0] } else { self.offsets[1] };
        let end = if at.wrapping_add(1) == self.count { keys.div_ceil(tile_n) } else { keys / tile_n };
        let number = GlobalInts::new(&self.numbers).nearest(at.wrapping_add(offset)) as u32;
        number.min(end.wrapping_sub(1))
    }

    /// [`BlockList::number`]; for a position behind the list, the number of the block behind all keys.
    #[inline(always)]
    pub fn number_or_end(&self, at: u32) -> u32 {
        let [tile_n, keys] = self.keys;
        if at < self.count { self.number(at) } else { keys.div_ceil(tile_n) }
    }
}

/// The next block of a list, with its position and its number. The walks through keys and values share this
/// value. Both walks load the number of a block one block before its use, so that no copy waits for the load.
pub struct Next(Cell<[u32; 2]>);

impl Next {
    /// The block before position `end`.
    #[inline(always)]
    pub fn new(list: &BlockList, end: u32) -> Self {
        let at = end.wrapping_sub(1);
        Next(Cell::new([at, list.number(at)]))
    }

    #[inline(always)]
    fn number(&self) -> u32 {
        self.0.get()[1]
    }

    /// Goes to the block before this one. Behind position 0, the number has no meaning, and no copy follows.
    #[inline(always)]
    fn advance(&self, list: &BlockList) {
        let at = self.0.get()[0].wrapping_sub(1);
        self.0.set([at, list.number(at)]);
    }
}

/// A walk through the blocks of a list. Each block has `tiles` tiles. Two walks share a [`Next`]. The walk
/// that takes a block last advances the [`Next`].
pub struct ListWalk<'n, T> {
    walk: T,
    list: BlockList,
    next: &'n Next,
    is_last: bool,
    tiles: u32,
    /// Number of tiles of this block that the walk has not taken.
    left: u32,
}

impl<'n, T> ListWalk<'n, T> {
    /// Starts at the next block, with `walk` through the tiles of its keys.
    #[inline(always)]
    pub fn new<E: Element, const R: usize, const C: usize, G>(
        walk: T,
        (list, next): (BlockList, &'n Next),
        (tiles, is_last): (u32, bool),
        group: &G,
    ) -> Self
    where
        T: TileWalk<E, R, C, G>,
    {
        let mut walk = ListWalk { walk, list, next, is_last, tiles, left: tiles };
        walk.turn(group);
        walk
    }

    /// Goes to the next block.
    #[inline(always)]
    fn turn<E: Element, const R: usize, const C: usize, G>(&mut self, group: &G)
    where
        T: TileWalk<E, R, C, G>,
    {
        self.walk.seek((self.next.number() + 1).wrapping_mul(self.tiles).wrapping_sub(1), group);
        self.left = self.tiles;
        if self.is_last {
            self.next.advance(&self.list);
        }
    }
}

// SAFETY: the walk inside keeps the promises of its steps. `step::<false>` takes no tile whose rows are
// missing, because `BlockList::number` names whole blocks behind the first one.
unsafe impl<E: Element, const R: usize, const C: usize, G, T: TileWalk<E, R, C, G>> TileWalk<E, R, C, G>
    for ListWalk<'_, T>
{
    #[inline(always)]
    fn step<const EDGE: bool>(&mut self, group: &G, copy: impl Fn(u32, u32, u64, bool)) {
        self.walk.step::<EDGE>(group, copy);
        self.left -= 1;
        if self.left == 0 {
            self.turn(group);
        }
    }

    #[inline(always)]
    fn seek(&mut self, tile: u32, group: &G) {
        self.walk.seek(tile, group);
    }
}
