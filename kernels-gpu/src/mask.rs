//! Which keys a query sees. A mask is two numbers a row, the first key seen and the one past the last, so
//! that masking costs a compare and a select an element.
use core::marker::PhantomData;
use core::ops::Range;
use spec::{Causal, FastDiv, Full, Local, MaskMarker, Window};
use tile::Warp;
use tile::mma::{Acc, RowBounds};

/// The rows of one thread block.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First query.
    pub first: u32,
    /// Queries of a tile.
    pub tile: u32,
    /// Queries of the head.
    pub q_len: u32,
    /// Keys of the head.
    pub k_len: u32,
    /// The mask's parameters.
    pub window: Window,
    /// Sequence and query head that they are of.
    pub of: [u32; 2],
}

/// The key blocks that some row of a thread block sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First one.
    pub start: u32,
    /// Those that need no mask: whole, and seen by every row.
    pub interior: (u32, u32),
    /// One past the last.
    pub end: u32,
}

impl BlockRange {
    /// Slice `index` of `slices` as equal ones as there can be. Where there are more slices than blocks, some
    /// are empty.
    #[inline(always)]
    pub fn slice(self, index: u32, slices: FastDiv) -> Self {
        let blocks = self.end - self.start;
        let bound = |index: u32| self.start + slices.div_rem(blocks * index).0;
        let (start, end) = (bound(index), bound(index + 1));
        // `clamp` would leave a panic path in the PTX.
        let within = |block: u32| block.max(start).min(end);
        let interior = (within(self.interior.0), within(self.interior.1));
        BlockRange { start, interior, end }
    }
}

/// `$step(n, whether it is an edge, which needs a mask)` for each key block of a range, the last one first.
/// A macro: an inlined function that takes the step costs instructions of main loops (128x48 of packed
/// sequences on sm_90: 685 for 681).
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
        if <$mask>::LEFT {
            for n in ($range.start..$range.interior.0).rev() {
                $step(n, true);
            }
        }
    };
}
pub(crate) use each_key_block;

/// A mask.
pub trait MaskFn: MaskMarker {
    /// Whether rows may start after key 0.
    const LEFT: bool;
    /// Whether every row sees every key.
    const SEES_ALL: bool;

    /// First key that `row` sees; below 0 or past the end where it reaches there.
    fn first_key(rows: &Rows, row: u32) -> i32;

    /// One past the last key that `row` sees; 0 or below where it sees none. Neither bound ever falls from
    /// one row to the next.
    fn end_key(rows: &Rows, row: u32) -> i32;

    /// Keys that the query at position `at` sees in decoding, where the launch says how far it sees to the
    /// right under every mask; the start may be below 0, the end too.
    #[inline(always)]
    fn keys_at(window: &Window, at: i32, k_len: u32) -> Range<i32> {
        let start = if Self::LEFT { at - window.left } else { 0 };
        start..at.saturating_add(window.right + 1).min(k_len as i32)
    }

    /// Keys that `row` sees.
    #[inline(always)]
    fn keys(rows: &Rows, row: u32) -> Range<i32> {
        Self::first_key(rows, row)..Self::end_key(rows, row).min(rows.k_len as i32)
    }

    /// Which blocks of `tile_n` keys the rows see.
    #[inline(always)]
    fn blocks(rows: &Rows, tile_n: u32) -> BlockRange {
        let last_row = (rows.first + rows.tile).min(rows.q_len) - 1;
        let (upper, lower) = (Self::keys(rows, rows.first), Self::keys(rows, last_row));
        let clamp = |key: i32| key.max(0) as u32;
        let end = clamp(lower.end).div_ceil(tile_n);
        if !Self::LEFT {
            return BlockRange { start: 0, interior: (0, clamp(upper.end) / tile_n), end };
        }
        let start = (clamp(upper.start) / tile_n).min(end);
        let interior_start = clamp(lower.start).div_ceil(tile_n).clamp(start, end);
        let interior_end = (clamp(upper.end) / tile_n).clamp(start, end);
        // Where no block is seen whole by all, all are edges; those are taken first.
        let interior =
            if interior_start < interior_end { (interior_start, interior_end) } else { (start, start) };
        BlockRange { start, interior, end }
    }
}

/// What a warp's rows see of some keys.
pub struct Seen<Mask, const W: usize> {
    start: RowBounds<W>,
    end: RowBounds<W>,
    mask: PhantomData<Mask>,
}

impl<Mask: MaskFn, const W: usize> Seen<Mask, W> {
    /// The rows from `row0` on, and the keys from `key0` on.
    #[inline(always)]
    pub fn of(rows: &Rows, row0: u32, key0: u32, warp: Warp) -> Self {
        Seen {
            start: RowBounds::new(|row| Mask::keys(rows, row0 + row).start - key0 as i32, warp),
            end: RowBounds::new(|row| Mask::keys(rows, row0 + row).end - key0 as i32, warp),
            mask: PhantomData,
        }
    }

    /// Whether some row sees one of the first `keys`.
    #[inline(always)]
    pub fn any(&self, keys: u32, warp: Warp) -> bool {
        warp.any(self.end.last() > 0 && (!Mask::LEFT || self.start.first() < keys as i32))
    }

    /// Leaves of scores those that are seen.
    #[inline(always)]
    pub fn mask<const N: usize>(&self, acc_s: &mut Acc<W, N>) {
        acc_s.keep_before(&self.end);
        if Mask::LEFT {
            acc_s.keep_from(&self.start);
        }
    }
}

impl MaskFn for Full {
    const LEFT: bool = false;
    const SEES_ALL: bool = true;
    #[inline(always)]
    fn first_key(_: &Rows, _: u32) -> i32 {
        0
    }
    #[inline(always)]
    fn end_key(rows: &Rows, _: u32) -> i32 {
        rows.k_len as i32
    }
}

impl MaskFn for Causal {
    const LEFT: bool = false;
    const SEES_ALL: bool = false;
    #[inline(always)]
    fn first_key(_: &Rows, _: u32) -> i32 {
        0
    }
    #[inline(always)]
    fn end_key(rows: &Rows, row: u32) -> i32 {
        row as i32 + 1 + rows.window.shift
    }
}

impl MaskFn for Local {
    const LEFT: bool = true;
    const SEES_ALL: bool = false;
    #[inline(always)]
    fn first_key(rows: &Rows, row: u32) -> i32 {
        Self::keys_at(&rows.window, row as i32 + rows.window.shift, rows.k_len).start
    }
    #[inline(always)]
    fn end_key(rows: &Rows, row: u32) -> i32 {
        Self::keys_at(&rows.window, row as i32 + rows.window.shift, rows.k_len).end
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// Compares the block range with what every row sees, key by key.
    fn check<M: MaskFn>(rows: Rows, tile_n: u32) {
        let range = M::blocks(&rows, tile_n);
        let last = (rows.first + rows.tile).min(rows.q_len);
        let sees = |row: u32, key: u32| key < rows.k_len && M::keys(&rows, row).contains(&(key as i32));
        for block in 0..rows.k_len.div_ceil(tile_n) {
            let keys = block * tile_n..(block + 1) * tile_n;
            let any = (rows.first..last).any(|row| keys.clone().any(|key| sees(row, key)));
            let all = (rows.first..last).all(|row| keys.clone().all(|key| sees(row, key)));
            let taken = (range.start..range.end).contains(&block);
            let unmasked = (range.interior.0..range.interior.1).contains(&block);
            assert!(taken || !any, "block {block} is seen and not taken: {range:?}");
            assert!(all || !unmasked, "block {block} needs a mask: {range:?}");
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
                                let rows = Rows { first, tile: 32, q_len, k_len, window, of: [0; 2] };
                                check::<Full>(rows, tile_n);
                                check::<Causal>(rows, tile_n);
                                check::<Local>(rows, tile_n);
                            }
                        }
                    }
                }
            }
        }
    }
}
