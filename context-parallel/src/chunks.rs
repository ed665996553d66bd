//! The distribution of a sequence's positions over ranks.
use ferroflash::Error;
use std::ops::Range;

/// The positions of each rank: every rank holds the same value. A rank's tensors have the rows of its
/// positions, in ascending order. A rank may have no positions.
///
/// | constructor | a rank has | for |
/// |---|---|---|
/// | [`zigzag`](Chunks::zigzag) | chunks `r` and `2n - 1 - r` of `2n` chunks | causal masks: equal work |
/// | [`contiguous`](Chunks::contiguous) | chunk `r` of `n` chunks | full masks, windows |
/// | [`new`](Chunks::new) | your ranges | sequences that an engine has already cut |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    ranks: Vec<Vec<Range<usize>>>,
}

/// Consecutive positions of a rank, and the rows of the rank's tensors that have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub positions: Range<usize>,
    pub rows: Range<usize>,
}

impl Chunks {
    /// Cuts `positions` positions into two chunks per rank, whose lengths differ by at most one.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there are no ranks.
    pub fn zigzag(positions: usize, ranks: usize) -> Result<Self, Error> {
        let chunk = |index| cut(positions, 2 * ranks, index);
        Self::new((0..ranks).map(|rank| vec![chunk(rank), chunk(2 * ranks - 1 - rank)]).collect())
    }

    /// Cuts `positions` positions into one chunk per rank, whose lengths differ by at most one.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there are no ranks.
    pub fn contiguous(positions: usize, ranks: usize) -> Result<Self, Error> {
        Self::new((0..ranks).map(|rank| vec![cut(positions, ranks, rank)]).collect())
    }

    /// Takes the ranges of each rank's positions. Empty ranges count for nothing.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there are no ranks, if a rank's ranges do not ascend, or if two ranges
    /// overlap.
    pub fn new(mut ranks: Vec<Vec<Range<usize>>>) -> Result<Self, Error> {
        if ranks.is_empty() {
            return Err(Error::invalid("ranks", 0, "there must be 1 or more"));
        }
        ranks.iter_mut().for_each(|ranges| ranges.retain(|range| !range.is_empty()));
        for (rank, ranges) in ranks.iter().enumerate() {
            if ranges.windows(2).any(|pair| pair[1].start < pair[0].end) {
                let expected = format_args!("the ranges of rank {rank} must ascend and not overlap");
                return Err(Error::invalid("chunks", format!("{ranges:?}"), expected));
            }
        }
        let mut all: Vec<_> = ranks.iter().flatten().collect();
        all.sort_by_key(|range| range.start);
        if let Some([a, b]) = all.array_windows().find(|[a, b]| b.start < a.end) {
            let expected = "two ranks must not have the same position";
            return Err(Error::invalid("chunks", format!("{a:?} and {b:?}"), expected));
        }
        Ok(Chunks { ranks })
    }

    /// Returns the number of ranks.
    pub const fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the positions of a rank. A rank that does not exist has none.
    pub fn of(&self, rank: usize) -> &[Range<usize>] {
        self.ranks.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of positions of a rank: the rows of its tensors.
    pub fn rows(&self, rank: usize) -> usize {
        self.of(rank).iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns the largest number of rows of a rank.
    pub(crate) fn most_rows(&self) -> usize {
        (0..self.ranks()).map(|rank| self.rows(rank)).max().unwrap_or(0)
    }

    /// Returns a rank's positions with their rows.
    pub(crate) fn segments(&self, rank: usize) -> Vec<Segment> {
        let mut end = 0;
        let mut segment = |positions: &Range<usize>| {
            let rows = end..end + positions.len();
            end = rows.end;
            Segment { positions: positions.clone(), rows }
        };
        self.of(rank).iter().map(&mut segment).collect()
    }
}

/// Returns one of `parts` parts of `0..length`, whose lengths differ by at most one.
fn cut(length: usize, parts: usize, index: usize) -> Range<usize> {
    let at = |index: usize| (length as u128 * index as u128 / parts as u128) as usize;
    at(index)..at(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_positions_once() -> Result<(), Error> {
        for (positions, ranks) in [(0, 1), (1, 2), (5, 2), (100, 3), (1000, 8)] {
            for chunks in [Chunks::zigzag(positions, ranks)?, Chunks::contiguous(positions, ranks)?] {
                let mut seen: Vec<usize> =
                    (0..ranks).flat_map(|rank| chunks.of(rank)).cloned().flatten().collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..positions), "{chunks:?}");
                let rows = |rank| chunks.rows(rank);
                let largest = (0..ranks).map(rows).max().unwrap_or(0);
                let smallest = (0..ranks).map(rows).min().unwrap_or(0);
                assert!(largest - smallest <= 2, "{chunks:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn wrong_chunks_are_refused_by_name() {
        let wrong: [(Vec<Vec<Range<usize>>>, &str); 3] = [
            (vec![], "invalid ranks: 0"),
            (vec![vec![4..8, 0..4]], "the ranges of rank 0 must ascend"),
            (vec![vec![0..4], vec![3..8]], "two ranks must not have the same position"),
        ];
        for (ranks, name) in wrong {
            let error = Chunks::new(ranks).expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
