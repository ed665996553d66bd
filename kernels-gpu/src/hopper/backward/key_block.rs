//! A block of keys, as the rows of transposed scores: the tiles of queries that it visits, and its turns
//! there.
use crate::rows::{Rows, Sequence};
use crate::variant::blocks::{At, BlockRange, Seen};
use crate::variant::mask::MaskMod;
use crate::variant::transposed::Transposed;
use core::ops::Range;
use tile::Warp;
use tile::mma::Acc;

/// A block of keys. A tile of queries takes its gradients from the blocks that visit it, in the order of
/// keys.
///
/// The first block visits all tiles before its own queries, and the last block all tiles behind them, so that
/// queries without keys get gradients of 0. A block whose keys no query sees visits one tile, and gets
/// gradients of 0 there. The blocks that visit a tile have consecutive numbers, if the keys of consecutive
/// queries leave no gap: with full and causal masks and with windows.
#[derive(Clone, Copy)]
pub struct KeyBlock<M> {
    /// The rows of the transposed scores.
    pub rows: Rows,
    /// The number of the block among the blocks of its head.
    number: u32,
    blocks: u32,
    mask: M,
    turned: Transposed<M, true>,
    /// The tiles that the block visits, and those of them that need no mask.
    range: BlockRange,
    tile_n: u32,
    shift: i32,
}

/// A visit: tile `n` of the queries of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The query head.
    pub head: u32,
    /// The tile.
    pub n: u32,
}

/// The visits of a block in their order: the last queries first, and of each tile all heads.
///
/// A tile takes its gradients from blocks that have as many visits before it, if they began together. If a
/// block went from head to head, a causal block of few queries would wait at the next head's last queries for
/// the blocks of many queries.
#[derive(Clone)]
pub struct Visits {
    /// The current visit.
    pub visit: Visit,
    /// The last visit's tile.
    start: u32,
    /// The first head, and the head behind the last one.
    heads: [u32; 2],
}

impl Visits {
    /// Goes on to the next visit, if there is one.
    #[inline(always)]
    pub fn advance(&mut self) -> bool {
        let ([first, end], Visit { head, n }) = (self.heads, self.visit);
        if head + 1 < end {
            self.visit.head = head + 1;
            return true;
        }
        self.visit = Visit { head: first, n: n.wrapping_sub(1) };
        n > self.start
    }
}

impl<M: MaskMod> KeyBlock<M> {
    /// Block `number` of `blocks`, with the keys of `rows` (`Rows::transposed`), under mask `mask` of `of`.
    /// With `has_unused`, a constant, blocks may follow whose keys no query may see. They visit the last
    /// tile.
    #[inline(always)]
    pub fn new(
        [number, blocks]: [u32; 2],
        rows: Rows,
        mask: M,
        of: &Sequence,
        tile_n: u32,
        has_unused: bool,
    ) -> Self {
        let turned = Transposed::new(mask, of);
        let seen = BlockRange::of(turned, &rows, tile_n);
        let is_unused = has_unused && number >= blocks;
        let is_last = is_unused || number + 1 == blocks;
        let end = if is_last { rows.k_len / tile_n } else { seen.end.max(1) };
        let start = match number {
            _ if is_unused => end - 1,
            0 => 0,
            _ => seen.start.min(end - 1),
        };
        let range = BlockRange { start, end, ..seen };
        KeyBlock { rows, number, blocks, mask, turned, range, tile_n, shift: of.shift }
    }

    /// The visits to the tiles of heads `heads`, at the first visit.
    #[inline(always)]
    pub fn visits(&self, heads: Range<u32>) -> Visits {
        let visit = Visit { head: heads.start, n: self.range.end - 1 };
        Visits { visit, start: self.range.start, heads: [heads.start, heads.end] }
    }

    /// The first query of a visit.
    #[inline(always)]
    pub fn first_query(&self, visit: Visit) -> u32 {
        visit.n * self.tile_n
    }

    /// The number of the block's turn at tile `n`: the number of blocks that visit the tile before.
    #[inline(always)]
    pub fn turn(&self, n: u32) -> u32 {
        if !M::LEFT || n == 0 {
            return self.number;
        }
        let key = self.mask.keys((n * self.tile_n) as i32 + self.shift).start.max(0) as u32;
        self.number - (key / self.rows.tile).min(self.blocks - 1)
    }

    /// Whether the scores of tile `n` need no mask.
    #[inline(always)]
    pub fn is_interior(&self, n: u32) -> bool {
        let (start, end) = self.range.interior;
        start <= n && n < end
    }

    /// Masks the scores of tile `n`.
    #[inline(always)]
    pub fn mask<const N: usize>(&self, scores: &mut Acc<1, N>, n: u32, (first_row, warp): (u32, Warp)) {
        let at = self.at(n, first_row, warp);
        let seen = Seen::<_, 1>::of(self.turned, at);
        match M::LEFT {
            true => seen.mask(scores, at),
            // All queries from the first one on see a key. Padding behind the last one has no weight.
            false => scores.keep_from(&seen.start),
        }
    }

    /// The coordinates of a warp's scores of tile `n`.
    #[inline(always)]
    pub fn at(&self, n: u32, first_row: u32, warp: Warp) -> At<'_> {
        At { rows: &self.rows, row0: self.rows.first + first_row, key0: n * self.tile_n, warp }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::exact::sequence;
    use spec::{Causal, Full, Window, Windowed};
    use std::vec::Vec;

    /// Compares visits and turns with the keys of each query.
    fn check<M: MaskMod>(mask: M, [queries, keys]: [u32; 2], shift: i32, [tile_m, tile_n]: [u32; 2]) {
        let of = Sequence { shift, ..sequence(0, 0, [queries, keys], 1.0) };
        let (blocks, tiles) = (keys.div_ceil(tile_m), queries.div_ceil(tile_n));
        let at = std::format!("{} {queries} x {keys}, shift {shift}", std::any::type_name::<M>());
        let all: Vec<_> = (0..blocks)
            .map(|number| {
                let window = Window { shift, left: 0, right: 0 };
                let rows = [number * tile_m, tile_m];
                let rows = Rows::transposed(rows, [queries, keys], tile_n, window, [0; 2]);
                KeyBlock::new([number, blocks], rows, mask, &of, tile_n, false)
            })
            .collect();
        let visits = |block: &KeyBlock<M>, heads| {
            let mut visits = block.visits(0..heads);
            core::iter::successors(Some(visits.visit), move |_| visits.advance().then_some(visits.visit))
        };
        for n in 0..tiles {
            let visit = Visit { head: 1, n };
            let turns: Vec<_> =
                all.iter().filter(|b| visits(b, 2).any(|v| v == visit)).map(|block| block.turn(n)).collect();
            assert_eq!(turns, (0..turns.len() as u32).collect::<Vec<_>>(), "{at}: turns at tile {n}");
            assert!(!turns.is_empty(), "{at}: no block visits tile {n}");
        }
        for (block, key) in all.iter().flat_map(|b| (0..tile_m).map(move |row| (b, b.rows.first + row))) {
            for query in (0..queries).filter(|_| key < keys) {
                let interval = mask.keys(query as i32 + shift);
                let sees = !(M::LEFT && interval.start > key as i32) && (key as i32) < interval.end;
                let n = query / tile_n;
                assert!(!sees || visits(block, 1).any(|v| v.n == n), "{at}: {query} sees {key}");
                let (start, end) = block.range.interior;
                assert!(sees || !(start..end).contains(&n), "{at}: {query} does not see {key}");
            }
        }
    }

    #[test]
    fn blocks_visit_each_tile_in_consecutive_turns() {
        let lengths = [[1, 1], [17, 64], [64, 17], [40, 200], [200, 40], [130, 130], [1, 300]];
        let windows = [(0, 0), (5, 3), (20, Window::UNBOUNDED), (70, 1), (Window::UNBOUNDED, 9)];
        // A block has whole stages of queries, or a part of one.
        for tiles in [[32, 16], [48, 20], [32, 80]] {
            for lens @ [queries, keys] in lengths {
                for shift in [0, keys as i32 - queries as i32] {
                    check(Full, lens, shift, tiles);
                    check(Causal, lens, shift, tiles);
                    for (left, right) in windows {
                        check(Windowed { left, right }, lens, shift, tiles);
                    }
                }
            }
        }
    }
}
