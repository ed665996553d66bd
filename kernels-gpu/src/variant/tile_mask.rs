//! The mask of a work tile. It determines the key blocks that a loop takes. With an ordinary mask, the loop
//! takes a range of blocks. With a block mask, it takes the blocks of a list.
use crate::rows::Rows;
use crate::sealed::Sealed;
use crate::variant::blocks::BlockRange;
use crate::variant::mask::MaskMod;
use attention_tile::{BlockList, ListWalk, Next};
use spec::Element;
use tile::Warp;
use tile::copy::TileWalk;
use tile::group::ThreadGroup;

/// The mask of a work tile. Loops count down from the last key block. The count is a block of a range, or a
/// position in a list.
pub trait TileMask: Copy + Sealed {
    /// The keys that queries see.
    type Keys: MaskMod;
    /// The next block, which walks through keys and values share.
    type Next;
    /// A walk that takes the loop's blocks.
    type Led<
        'n,
        E: Element,
        const R: usize,
        const C: usize,
        G: ThreadGroup,
        T: TileWalk<E, R, C, G>,
    >: TileWalk<E, R, C, G>;

    /// The keys that queries see.
    fn keys(self) -> Self::Keys;
    /// The key blocks of `tile_n` keys.
    fn range(self, rows: &Rows, tile_n: u32) -> BlockRange;
    /// The number of the block that the loop counts as `n`. If there is no such block, the number of a block
    /// behind all keys.
    fn block(&self, n: u32) -> u32;
    /// An equal mask that ptxas may keep in uniform registers.
    fn uniform(self, warp: Warp) -> Self;
    /// The last block of `range`, which the loop takes first.
    fn next(&self, range: BlockRange) -> Self::Next;
    /// Lets a walk down the tiles take the loop's blocks, from `next` on. `order` has the number of tiles per
    /// block, and says whether this walk takes each block last.
    fn lead<'n, E: Element, const R: usize, const C: usize, G: ThreadGroup, T: TileWalk<E, R, C, G>>(
        self,
        walk: T,
        next: &'n Self::Next,
        order: (usize, bool),
        group: &G,
    ) -> Self::Led<'n, E, R, C, G, T>;
}

impl<M: MaskMod> Sealed for M {}
impl<M: MaskMod> TileMask for M {
    type Keys = M;
    type Next = ();
    type Led<'n, E: Element, const R: usize, const C: usize, G: ThreadGroup, T: TileWalk<E, R, C, G>> = T;

    #[inline(always)]
    fn keys(self) -> M {
        self
    }
    #[inline(always)]
    fn range(self, rows: &Rows, tile_n: u32) -> BlockRange {
        BlockRange::of(self, rows, tile_n)
    }
    #[inline(always)]
    fn block(&self, n: u32) -> u32 {
        n
    }
    #[inline(always)]
    fn uniform(self, _: Warp) -> M {
        self
    }
    #[inline(always)]
    fn next(&self, _: BlockRange) {}
    #[inline(always)]
    fn lead<E: Element, const R: usize, const C: usize, G: ThreadGroup, T: TileWalk<E, R, C, G>>(
        self,
        walk: T,
        (): &(),
        _: (usize, bool),
        _: &G,
    ) -> T {
        walk
    }
}

/// A mask with the work tile's list of key blocks.
#[derive(Clone, Copy)]
pub struct Listed<M> {
    mask: M,
    list: BlockList,
}

impl<M> Listed<M> {
    /// Both.
    #[inline(always)]
    pub fn new(mask: M, list: BlockList) -> Self {
        Listed { mask, list }
    }
}

impl<M: MaskMod> Sealed for Listed<M> {}
impl<M: MaskMod> TileMask for Listed<M> {
    type Keys = M;
    type Next = Next;
    type Led<'n, E: Element, const R: usize, const C: usize, G: ThreadGroup, T: TileWalk<E, R, C, G>> =
        ListWalk<'n, T>;

    #[inline(always)]
    fn keys(self) -> M {
        self.mask
    }
    #[inline(always)]
    fn range(self, _: &Rows, _: u32) -> BlockRange {
        let [full, end] = self.list.counts();
        BlockRange { start: 0, interior: (0, full), end }
    }
    #[inline(always)]
    fn block(&self, n: u32) -> u32 {
        self.list.number_or_end(n)
    }
    #[inline(always)]
    fn uniform(self, warp: Warp) -> Self {
        Listed { list: self.list.uniform(warp), ..self }
    }
    #[inline(always)]
    fn next(&self, range: BlockRange) -> Next {
        Next::new(&self.list, range.end)
    }
    #[inline(always)]
    fn lead<'n, E: Element, const R: usize, const C: usize, G: ThreadGroup, T: TileWalk<E, R, C, G>>(
        self,
        walk: T,
        next: &'n Next,
        (tiles, is_last): (usize, bool),
        group: &G,
    ) -> ListWalk<'n, T> {
        ListWalk::new(walk, (self.list, next), (tiles as u32, is_last), group)
    }
}
