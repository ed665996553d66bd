//! The sequences of many queries of a mixed batch.
use crate::{FastDiv, Sequences};

/// The mapping from query blocks to the sequences of at least `least` queries. The first block of sequence
/// `b`, which starts at row `s`, has index `s / tile_m + s / least`, or `s / tile_m + b` if that numbering
/// gives fewer blocks. In both numberings, a sequence of `q >= least` queries has an index for each of its
/// blocks. If most sequences have one query, the first numbering leaves few empty blocks. If most sequences
/// are prompts, the second numbering does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManySequences {
    /// The kernel takes the sequences of at least this number of queries: [`crate::FewParams::most`] + 1.
    pub least: FastDiv,
    /// 1 for the numbering `s / tile_m + b`, otherwise 0.
    pub by_sequence: u32,
}

impl ManySequences {
    /// All sequences, for kernels that map query blocks by [`Sequences`].
    pub const ALL: Self = ManySequences { least: FastDiv::ONE, by_sequence: 1 };

    /// The mapping for `count` sequences with `rows` rows in all, in tiles of `tile_m` rows, and the number
    /// of query blocks per head. Returns `None` if a number is 0, or if there are 2^30 sequences or 2^31
    /// blocks.
    pub fn new(count: u32, rows: u32, tile_m: u32, least: u32) -> Option<(Self, Sequences, u32)> {
        if count == 0 || count >= 1 << 30 || rows == 0 {
            return None;
        }
        let many =
            ManySequences { least: FastDiv::new(least)?, by_sequence: u32::from(rows / least > count) };
        let m_blocks = u64::from(rows / tile_m) + u64::from((rows / least).min(count));
        let m_blocks = u32::try_from(m_blocks.max(1)).ok().filter(|n| *n < 1 << 31)?;
        let step = 32u32.pow((count - 1).max(1).ilog(32));
        Some((many, Sequences { count, step, each: FastDiv::ONE }, m_blocks))
    }

    /// Index of the first query block of `sequence`, which starts at row `start`.
    #[inline(always)]
    pub fn begin(&self, sequence: u32, start: u32, tile_m: u32) -> u32 {
        let before = if self.by_sequence == 1 { sequence } else { self.least.div_rem(start).0 };
        (start / tile_m).wrapping_add(before)
    }
}

contract::no_padding! {
    ManySequences { least, by_sequence }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    /// Distributes a head's query blocks like the device, and checks that each block of a sequence of at
    /// least `least` queries has one index, and that an index has at most one block.
    fn check(lengths: &[u32], more: u32, tile_m: u32, least: u32) {
        let starts: Vec<u32> =
            lengths.iter().scan(0, |sum, n| Some(core::mem::replace(sum, *sum + n))).collect();
        let rows = lengths.iter().sum::<u32>() + more;
        let (many, sequences, m_blocks) =
            ManySequences::new(lengths.len() as u32, rows, tile_m, least).expect("valid");
        let mut taken: Vec<_> = lengths
            .iter()
            .map(|n| vec![0; if *n >= least { n.div_ceil(tile_m) as usize } else { 0 }])
            .collect();
        for m_block in 0..m_blocks {
            let begin = |b: u32| many.begin(b, starts[b as usize], tile_m);
            let found = sequences.find(m_block, |first, step| {
                let looked_at = (0..32).map(|lane| first + lane * step).filter(|b| *b < sequences.count);
                looked_at.filter(|b| begin(*b) <= m_block).count() as u32
            });
            let found = found.expect("the first sequence begins with block 0");
            assert_eq!(sequences.find_by_halves(m_block, |b| begin(b) <= m_block), found);
            if let Some(taken) = taken[found as usize].get_mut((m_block - begin(found)) as usize) {
                *taken += 1;
            }
        }
        assert!(
            taken.iter().flatten().all(|n| *n == 1),
            "{lengths:?}, tiles of {tile_m}, {least}: {taken:?}"
        );
    }

    #[test]
    fn every_tile_of_many_queries_once() {
        for (tile_m, least) in [(32, 2), (64, 5), (128, 5), (128, 17), (128, 130)] {
            for count in [1, 2, 31, 32, 33, 65, 1025] {
                let sets: [&[u32]; 6] = [
                    &[1],
                    &[0, 700],
                    &[1, 0, 4, 5, 700, 6],
                    &[least, least - 1],
                    &[128, 127, 1, 1, 1, 129],
                    &[64, 5, 0, 0, 65],
                ];
                for set in sets {
                    let lengths: Vec<u32> = set.iter().copied().cycle().take(count).collect();
                    if lengths.iter().sum::<u32>() > 0 {
                        check(&lengths, 0, tile_m, least);
                    }
                    check(&lengths, 1000, tile_m, least);
                }
            }
        }
    }

    #[test]
    fn single_queries_and_prompts_leave_few_blocks() {
        let blocks = |count, rows| ManySequences::new(count, rows, 128, 5).map(|(_, _, blocks)| blocks);
        assert_eq!(blocks(256, 256), Some(2 + 51));
        assert_eq!(blocks(256, 1), Some(1));
        assert_eq!(blocks(8, 8 * 2048), Some(8 * 16 + 8));
        assert_eq!(blocks(0, 1), None);
    }
}
