//! The distribution of rows over threads.
use crate::FastDiv;

/// Each thread gets one part of one row. A block gets whole rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowParts {
    /// Number of rows.
    pub rows: u32,
    /// Whole rows per block.
    pub block_rows: u32,
    /// Parts per row.
    pub parts: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}
crate::no_padding! {
    RowParts { rows, block_rows, parts, reserved }
}

impl RowParts {
    /// Distributes `rows` rows of `parts` parts over blocks of `threads` threads. Returns `None` if a number
    /// is 0, if a row has more parts than a block has threads, or if all rows together have 2^31 parts or
    /// more.
    pub fn new(rows: usize, parts: usize, threads: u32) -> Option<Self> {
        let all = rows.checked_mul(parts).filter(|all| *all > 0 && *all < 1 << 31)?;
        let (rows, parts) = ((all / parts) as u32, FastDiv::new(parts as u32)?);
        let block_rows = threads / parts.get();
        (block_rows > 0).then_some(RowParts { rows, block_rows, parts, reserved: 0 })
    }

    /// Number of blocks of the launch.
    pub const fn blocks(&self) -> u32 {
        self.rows.div_ceil(self.block_rows)
    }
}

/// The parts of a row as pairs: first the pairs inside a range of parts, then the pairs of all other parts,
/// in order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPairs {
    /// The first part of the range.
    pub first: u32,
    /// Number of pairs in the range, which has twice as many parts.
    pub pairs: u32,
    /// Number of parts from one pair of the range to the next pair.
    pub step: u32,
    /// Number of parts between the two parts of a pair of the range.
    pub apart: u32,
}
crate::no_padding! {
    PartPairs { first, pairs, step, apart }
}

impl PartPairs {
    /// Pairs part `i` of the range's first half with part `i` of its second half.
    pub const fn halves(first: u32, pairs: u32) -> Self {
        PartPairs { first, pairs, step: 1, apart: pairs }
    }

    /// Pairs neighbours.
    pub const fn neighbours(first: u32, pairs: u32) -> Self {
        PartPairs { first, pairs, step: 2, apart: 1 }
    }

    /// The two parts of pair `i`. The second may lie behind the row's last part.
    #[inline(always)]
    pub const fn parts(&self, i: u32) -> [u32; 2] {
        if i < self.pairs {
            let one = self.first + i * self.step;
            return [one, one + self.apart];
        }
        let [one, two] = [2 * (i - self.pairs), 2 * (i - self.pairs) + 1];
        [self.outside(one), self.outside(two)]
    }

    /// The part with index `i` among the parts outside of the range.
    #[inline(always)]
    const fn outside(&self, i: u32) -> u32 {
        if i < self.first { i } else { i + 2 * self.pairs }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{PartPairs, RowParts};
    use std::vec::Vec;

    #[test]
    fn every_part_of_a_row_belongs_to_one_pair() {
        for (parts, first, pairs) in
            [(1u32, 0, 0), (2, 0, 1), (5, 0, 2), (5, 1, 2), (16, 0, 8), (16, 0, 2), (16, 5, 3), (72, 64, 4)]
        {
            for of in [PartPairs::halves(first, pairs), PartPairs::neighbours(first, pairs)] {
                let mut all: Vec<u32> = (0..parts.div_ceil(2)).flat_map(|i| of.parts(i)).collect();
                let range = 2 * pairs as usize;
                assert!(all[..range].iter().all(|part| (first..first + 2 * pairs).contains(part)), "{of:?}");
                all.retain(|part| *part < parts);
                all.sort_unstable();
                assert!(all.into_iter().eq(0..parts), "{parts} parts: {of:?}");
            }
        }
    }

    #[test]
    fn blocks_have_whole_rows_and_all_of_them() {
        for (rows, parts, block_rows, blocks) in
            [(1, 1, 256, 1), (256, 1, 256, 1), (257, 1, 256, 2), (100, 12, 21, 5), (3, 256, 1, 3)]
        {
            let dealt = RowParts::new(rows, parts, 256).expect("valid");
            assert_eq!((dealt.block_rows, dealt.blocks()), (block_rows, blocks), "{rows} x {parts}");
        }
        for (rows, parts) in [(0, 1), (1, 0), (1, 257), (1 << 30, 2), (usize::MAX, 2)] {
            assert_eq!(RowParts::new(rows, parts, 256), None, "{rows} x {parts}");
        }
    }
}
