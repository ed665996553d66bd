//! Finds the key blocks that a work tile needs, and masks the scores of a block.
use crate::rows::Rows;
use crate::variant::mask::{MaskMod, keys_of};
use spec::FastDiv;
use tile::Warp;
use tile::mma::{Acc, RowBounds};

/// The key blocks that at least one row of a work tile sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// Index of the first block.
    pub start: u32,
    /// Start and end of the blocks that need no mask, because every row sees all of their keys.
    pub interior: (u32, u32),
    /// Index behind the last block.
    pub end: u32,
}

impl BlockRange {
    /// The blocks of `tile_n` keys that the rows `rows` see.
    #[inline(always)]
    pub fn of<M: MaskMod>(mask: M, rows: &Rows, tile_n: u32) -> Self {
        let last_row = (rows.first + rows.tile).min(rows.q_len) - 1;
        let (upper, lower) = (keys_of(mask, rows, rows.first), keys_of(mask, rows, last_row));
        let clamp = |key: i32| key.max(0) as u32;
        let end = clamp(lower.end).div_ceil(tile_n);
        // Blocks in which the mask has no holes. If the mask never has holes, the compiler removes both
        // bounds.
        let whole = mask.whole();
        let (whole_start, whole_end) = match M::HOLES {
            true => (clamp(whole.start).div_ceil(tile_n), clamp(whole.end) / tile_n),
            false => (0, u32::MAX),
        };
        if !M::LEFT {
            // The interior begins with key 0, so it is empty if the mask may have holes there.
            let whole_end = if whole_start > 0 { 0 } else { whole_end };
            return BlockRange { start: 0, interior: (0, (clamp(upper.end) / tile_n).min(whole_end)), end };
        }
        let start = (clamp(upper.start) / tile_n).min(end);
        let interior_start = clamp(lower.start).div_ceil(tile_n).max(whole_start).clamp(start, end);
        let interior_end = (clamp(upper.end) / tile_n).min(whole_end).clamp(start, end);
        // If there is no interior, both of its bounds are `start`, so that the loop takes every block as an
        // edge.
        let interior =
            if interior_start < interior_end { (interior_start, interior_end) } else { (start, start) };
        BlockRange { start, interior, end }
    }

    /// Slice `index` of `slices` slices, whose sizes differ by at most one block. If there are more slices
    /// than blocks, some slices are empty.
    #[inline(always)]
    pub fn slice(self, index: u32, slices: FastDiv) -> Self {
        let blocks = self.end - self.start;
        let bound = |index: u32| self.start + slices.div_rem(blocks * index).0;
        let (start, end) = (bound(index), bound(index + 1));
        // The function `clamp` would leave a panic path in the PTX.
        let within = |block: u32| block.max(start).min(end);
        let interior = (within(self.interior.0), within(self.interior.1));
        BlockRange { start, interior, end }
    }
}

/// Calls `$step(n, is_edge)` for each key block of a range, from the last block to the first. An edge needs a
/// mask. This is a macro, because an inlined function with a closure adds instructions to main loops: the
/// loop of 128x48 for varlen tensors has 685 instead of 681 on sm_90.
macro_rules! each_key_block {
    ($mask:ty, $range:expr, $step:ident) => {
        for n in ($range.interior.1..$range.end).rev() {
            $step(n, true);
            if <$mask>::SEES_ALL {
                break; // only the last block can be cut
            }
        }
        for n in ($range.interior.0..$range.interior.1).rev() {
            $step(n, false);
        }
        if const { <$mask>::LEFT && !<$mask>::LISTED } {
            for n in ($range.start..$range.interior.0).rev() {
                $step(n, true);
            }
        }
    };
}
pub(crate) use each_key_block;

/// The coordinates of a warp's scores of one key block.
#[derive(Clone, Copy)]
pub struct At<'r> {
    /// The work tile's rows.
    pub rows: &'r Rows,
    /// Index of the warp's first row in the tile.
    pub row0: u32,
    /// Index of the block's first key.
    pub key0: u32,
    /// The warp that holds the scores. Scores of other crates do not receive this capability.
    pub(crate) warp: Warp,
}

impl At<'_> {
    /// The position and the key of the warp's first score.
    #[inline(always)]
    pub fn first(&self) -> [i32; 2] {
        [self.rows.position(self.row0), self.key0 as i32]
    }
}

/// The intervals of keys that a warp's rows see, relative to a block's first key.
pub struct Seen<M, const W: usize> {
    pub(crate) start: RowBounds<W>,
    end: RowBounds<W>,
    mask: M,
}

impl<M: MaskMod, const W: usize> Seen<M, W> {
    /// The intervals of the rows whose coordinates are `at`.
    #[inline(always)]
    pub fn of(mask: M, at: At) -> Self {
        let At { rows, row0, key0, warp } = at;
        Seen {
            start: RowBounds::new(|row| keys_of(mask, rows, row0 + row).start - key0 as i32, warp),
            end: RowBounds::new(|row| keys_of(mask, rows, row0 + row).end - key0 as i32, warp),
            mask,
        }
    }

    /// The intervals relative to key `key`. These intervals are relative to key 0.
    #[inline(always)]
    pub fn from(&self, key: u32) -> Self {
        let [start, end] = [&self.start, &self.end].map(|bounds| bounds.minus(key as i32));
        Seen { start, end, mask: self.mask }
    }

    /// Whether at least one row sees one of the block's first `keys` keys.
    #[inline(always)]
    pub fn any(&self, keys: u32, warp: Warp) -> bool {
        warp.any(self.end.last() > 0 && (!M::LEFT || self.start.first() < keys as i32))
    }

    /// Keeps the scores of keys that their rows see, and masks the others.
    #[inline(always)]
    pub fn mask<const N: usize>(&self, acc_s: &mut Acc<W, N>, at: At) {
        if M::HOLES {
            acc_s.keep_where(at.first(), at.warp, |p, k| self.mask.sees(p, k));
        }
        acc_s.keep_before(&self.end);
        if M::LEFT {
            acc_s.keep_from(&self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::rows::Sequence;
    use core::ops::Range;
    use spec::{Causal, Chunked, FastDiv, Full, MaskMarker, Prefix, Window, Windowed};

    /// Rows of tiles of 32 rows.
    const ROWS: Rows = Rows {
        first: 0,
        tile: 32,
        q_len: 1,
        k_len: 1,
        window: Window { shift: 0, left: 0, right: 0 },
        of: [0; 2],
    };

    /// Compares the block range with the keys that each row sees, key by key.
    fn check<M: MaskMod>(mask: M, rows: Rows, tile_n: u32) {
        let range = BlockRange::of(mask, &rows, tile_n);
        let last = (rows.first + rows.tile).min(rows.q_len);
        let sees = |row: u32, key: u32| {
            let (Range { start, end }, at) = (keys_of(mask, &rows, row), key as i32);
            let start = if M::LEFT { start } else { 0 };
            (start..end).contains(&at) && (!M::HOLES || mask.sees(rows.position(row), at))
        };
        let name = std::any::type_name::<M>();
        for block in 0..rows.k_len.div_ceil(tile_n) {
            let keys = block * tile_n..(block + 1) * tile_n;
            let any = (rows.first..last).any(|row| keys.clone().any(|key| sees(row, key)));
            let all = (rows.first..last).all(|row| keys.clone().all(|key| sees(row, key)));
            let taken = (range.start..range.end).contains(&block);
            let unmasked = (range.interior.0..range.interior.1).contains(&block);
            assert!(taken || !any, "{name}: rows see block {block}, which the range omits: {range:?}");
            assert!(all || !unmasked, "{name}: block {block} needs a mask: {range:?}");
        }
        assert!(range.start <= range.interior.0 && range.interior.0 <= range.interior.1, "{range:?}");
        assert!(range.interior.1 <= range.end || range.end == range.start, "{range:?}");
    }

    #[test]
    fn slices_are_the_range_in_order() {
        for (start, interior, end) in
            [(0, (0, 7), 8), (0, (0, 0), 1), (3, (5, 9), 11), (2, (2, 2), 6), (4, (4, 4), 4)]
        {
            let range = BlockRange { start, interior, end };
            for slices in 1..10 {
                let slices = FastDiv::new(slices).expect("not 0");
                let parts: std::vec::Vec<_> =
                    (0..slices.get()).map(|index| range.slice(index, slices)).collect();
                let blocks: std::vec::Vec<u32> = parts.iter().flat_map(|part| part.start..part.end).collect();
                assert_eq!(blocks, (start..end).collect::<std::vec::Vec<_>>());
                let unmasked: std::vec::Vec<u32> =
                    parts.iter().flat_map(|p| p.interior.0..p.interior.1).collect();
                assert_eq!(unmasked, (interior.0..interior.1).collect::<std::vec::Vec<_>>());
                let lengths = || parts.iter().map(|part| part.end - part.start);
                assert!(lengths().max() <= lengths().min().map(|least| least + 1), "{parts:?}");
            }
        }
    }

    /// A mask of every third key, from key 5 on, that has no holes in keys 40..90.
    #[derive(Clone, Copy)]
    struct Comb<const LEFT: bool>;
    impl<const LEFT: bool> MaskMarker for Comb<LEFT> {
        type Params = ();
    }
    impl<const LEFT: bool> MaskMod for Comb<LEFT> {
        const LEFT: bool = LEFT;
        fn load(_: &(), _: &Sequence) -> Self {
            Comb
        }
        fn keys(&self, p: i32) -> Range<i32> {
            5..100 + p
        }
        fn whole(&self) -> Range<i32> {
            40..90
        }
        fn sees(&self, _: i32, k: i32) -> bool {
            (40..90).contains(&k) || k % 3 == 0
        }
    }

    /// Checks every mask on these rows.
    fn check_all(rows: Rows, tile_n: u32) {
        let Window { left, right, .. } = rows.window;
        let window = Windowed { left, right };
        check(Full, rows, tile_n);
        check(Causal, rows, tile_n);
        check(window, rows, tile_n);
        check(Comb::<false>, rows, tile_n);
        check(Comb::<true>, rows, tile_n);
        for keys in [-3, 0, 33, 64, 1000] {
            check(Prefix { keys }, rows, tile_n);
        }
        for chunk in [1, 16, 50, 64, 1000].map(|chunk| FastDiv::new(chunk).expect("not 0")) {
            check(Chunked { chunk }, rows, tile_n);
            check((Chunked { chunk }, window), rows, tile_n);
            check((Prefix { keys: 33 }, (Comb::<true>, Chunked { chunk })), rows, tile_n);
        }
    }

    #[test]
    fn blocks_cover_what_rows_see() {
        let far = Window::UNBOUNDED;
        for q_len in [1, 17, 64, 113, 128] {
            for k_len in [1, 16, 47, 48, 49, 113, 200] {
                for first in (0..q_len).step_by(32) {
                    for tile_n in [16, 48, 64] {
                        for shift in [0, k_len as i32 - q_len as i32] {
                            for (left, right) in
                                [(far, 0), (0, 0), (5, 3), (far, 7), (20, far), (far, far), (70, 1)]
                            {
                                let window = Window { shift, left, right };
                                let rows = Rows { first, q_len, k_len, window, ..ROWS };
                                check_all(rows, tile_n);
                            }
                        }
                    }
                }
            }
        }
    }
}
