//! The distribution of a sequence's positions over ranks.
use ferroflash::Error;
use std::cmp::Ordering;
use std::iter;
use std::ops::Range;

/// The positions of each rank: every rank holds the same value. A rank's tensors have the rows of its
/// positions, in ascending order. A rank may have no positions.
///
/// | constructor | a rank has | for |
/// |---|---|---|
/// | [`zigzag`](Chunks::zigzag) | chunks `r` and `2n - 1 - r` of `2n` chunks | causal masks: equal work |
/// | [`contiguous`](Chunks::contiguous) | chunk `r` of `n` chunks | full masks, windows |
/// | [`packed`](Chunks::packed) | a zigzag of each of several sequences | varlen sequences |
/// | [`new`](Chunks::new) | your ranges | sequences that an engine has already cut |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    ranks: Vec<Vec<Range<usize>>>,
    /// The end of each sequence. A range lies in one sequence.
    ends: Vec<usize>,
}

/// Consecutive positions of a sequence, and the rows of keys or queries that have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub sequence: usize,
    pub positions: Range<usize>,
    pub rows: Range<usize>,
    pub home: Home,
}

/// Where a segment belongs: the segments of this rank have this one at `index`, and its tensors have `rows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub rank: usize,
    pub index: usize,
    pub rows: Range<usize>,
}

/// Ranks that one sequence may have. NCCL's largest communicators have fewer.
const RANKS: usize = 1 << 16;
/// Positions of all sequences: kernels number them in 32 bits.
const POSITIONS: usize = i32::MAX as usize;

impl Chunks {
    /// Cuts `positions` positions into two chunks per rank, whose lengths differ by at most one.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there are no ranks, or more ranks or positions than a sequence may have.
    pub fn zigzag(positions: usize, ranks: usize) -> Result<Self, Error> {
        Self::packed(&[positions], ranks)
    }

    /// Cuts each of several sequences into two chunks per rank. The tensors have a batch of one: the rows of
    /// the sequences lie one behind the other.
    ///
    /// # Errors
    /// Returns the errors of [`zigzag`](Chunks::zigzag).
    pub fn packed(lengths: &[usize], ranks: usize) -> Result<Self, Error> {
        limits(lengths.iter().fold(0, |sum: usize, length| sum.saturating_add(*length)), ranks)?;
        let starts = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end - length)
        });
        let of_rank = |rank| {
            let chunk = |(start, length): (usize, &usize), index| {
                let Range { start: first, end } = cut(*length, 2 * ranks, index);
                start + first..start + end
            };
            let both = |sequence| [rank, 2 * ranks - 1 - rank].map(|index| chunk(sequence, index));
            starts.clone().zip(lengths).flat_map(both).collect()
        };
        Self::new((0..ranks).map(of_rank).collect())?.sequences(lengths)
    }

    /// Cuts `positions` positions into one chunk per rank, whose lengths differ by at most one.
    ///
    /// # Errors
    /// Returns the errors of [`zigzag`](Chunks::zigzag).
    pub fn contiguous(positions: usize, ranks: usize) -> Result<Self, Error> {
        limits(positions, ranks)?;
        Self::new((0..ranks).map(|rank| vec![cut(positions, ranks, rank)]).collect())
    }

    /// Takes the ranges of each rank's positions, which are those of one sequence. Empty ranges count for
    /// nothing.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there are no ranks, if a rank's ranges do not ascend, if two ranges
    /// overlap, or if no rank has a position that lies before another one.
    pub fn new(mut ranks: Vec<Vec<Range<usize>>>) -> Result<Self, Error> {
        let last = ranks.iter().flatten().map(|range| range.end).max();
        limits(last.unwrap_or(0), ranks.len())?;
        ranks.iter_mut().for_each(|ranges| ranges.retain(|range| !range.is_empty()));
        for (rank, ranges) in ranks.iter().enumerate() {
            if ranges.windows(2).any(|pair| pair[1].start < pair[0].end) {
                let expected = format_args!("the ranges of rank {rank} must ascend and not overlap");
                return Err(Error::invalid("chunks", format!("{ranges:?}"), expected));
            }
        }
        let mut all: Vec<_> = ranks.iter().flatten().collect();
        all.sort_by_key(|range| range.start);
        let mut end = 0;
        for range in all {
            let expected = match range.start.cmp(&end) {
                Ordering::Equal => {
                    end = range.end;
                    continue;
                }
                Ordering::Less => "two ranks must not have the same position",
                Ordering::Greater => "some rank must have the positions before it",
            };
            return Err(Error::invalid("chunks", format!("{range:?} behind position {end}"), expected));
        }
        Ok(Chunks { ranks, ends: vec![end] })
    }

    /// Says that the positions are those of several sequences of these lengths, one behind the other. A range
    /// over two sequences becomes two ranges.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the lengths do not add up to the number of positions.
    pub fn sequences(mut self, lengths: &[usize]) -> Result<Self, Error> {
        let (mut ends, mut end) = (Vec::new(), 0usize);
        for length in lengths {
            end = end.saturating_add(*length);
            ends.push(end);
        }
        if end != self.positions() {
            let expected = format_args!("their sum must be the number of positions, {}", self.positions());
            return Err(Error::invalid("lengths", format!("{lengths:?}"), expected));
        }
        // Empty sequences have no positions, so no segment names them.
        ends.dedup();
        for ranges in &mut self.ranks {
            let cut = |range: &Range<usize>| {
                let inner = ends.iter().copied().filter(|end| range.start < *end && *end < range.end);
                let starts: Vec<usize> = iter::once(range.start).chain(inner).collect();
                let last = range.end;
                let end = move |index: usize, starts: &[usize]| *starts.get(index + 1).unwrap_or(&last);
                (0..starts.len()).map(move |index| starts[index]..end(index, &starts))
            };
            *ranges = ranges.iter().flat_map(cut).collect();
        }
        Ok(Chunks { ends, ..self })
    }

    /// Returns a number that differs for other chunks.
    pub(crate) fn digest(&self) -> u64 {
        // The numbers of ranges separate the ranks.
        let ranks = self
            .ranks
            .iter()
            .flat_map(|of| iter::once(of.len()).chain(of.iter().flat_map(|range| [range.start, range.end])));
        let mix = |hash: u64, number: usize| (hash ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ranks.chain(self.ends.iter().copied()).fold(self.ranks.len() as u64, |hash, number| {
            let mixed = mix(hash, number);
            mixed ^ mixed >> 29
        })
    }

    /// Returns the number of ranks.
    pub const fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the number of positions of all sequences.
    pub fn positions(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the positions of a rank. A rank that does not exist has none.
    pub fn of(&self, rank: usize) -> &[Range<usize>] {
        self.ranks.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of positions of a rank: the rows of its tensors.
    pub fn rows(&self, rank: usize) -> usize {
        self.of(rank).iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns a rank's segments, whose rows are those of the rank's tensors.
    pub(crate) fn segments(&self, rank: usize) -> Vec<Segment> {
        let mut end = 0;
        let mut segment = |(index, positions): (usize, &Range<usize>)| {
            let rows = end..end + positions.len();
            end = rows.end;
            let sequence = self.ends.partition_point(|end| *end <= positions.start);
            let home = Home { rank, index, rows: rows.clone() };
            Segment { sequence, positions: positions.clone(), rows, home }
        };
        self.of(rank).iter().enumerate().map(&mut segment).collect()
    }

    /// Returns the segments of all ranks in the order of their positions, which are their rows.
    pub(crate) fn all(&self) -> Vec<Segment> {
        let mut all: Vec<Segment> = (0..self.ranks()).flat_map(|rank| self.segments(rank)).collect();
        all.sort_by_key(|segment| segment.positions.start);
        all.iter_mut().for_each(|segment| segment.rows = segment.positions.clone());
        all
    }

    /// Returns the positions of each sequence that has some.
    pub(crate) fn of_sequences(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| start..*end).filter(|positions| !positions.is_empty())
    }
}

/// Checks the numbers of positions and ranks.
fn limits(positions: usize, ranks: usize) -> Result<(), Error> {
    if !(1..=RANKS).contains(&ranks) {
        return Err(Error::invalid("ranks", ranks, format_args!("there must be 1 to {RANKS}")));
    }
    if positions > POSITIONS {
        let expected = format_args!("all sequences together may have {POSITIONS}");
        return Err(Error::invalid("positions", positions, expected));
    }
    Ok(())
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

    /// A range over two sequences becomes two, and segments name their sequence.
    #[test]
    fn sequences_cut_ranges() -> Result<(), Error> {
        let chunks = Chunks::contiguous(10, 2)?.sequences(&[3, 0, 4, 3])?;
        assert_eq!([chunks.of(0), chunks.of(1)], [&[0..3, 3..5], &[5..7, 7..10]]);
        let of = |rank: usize| chunks.segments(rank).into_iter().map(|segment| segment.sequence);
        assert!(of(0).chain(of(1)).eq([0, 1, 1, 2]));
        assert!(chunks.of_sequences().eq([0..3, 3..7, 7..10]));
        let packed = Chunks::packed(&[8, 1, 4], 2)?;
        assert_eq!(packed.of(0), [0..2, 6..8, 8..9, 9..10, 12..13]);
        assert_eq!(packed.of(1), [2..4, 4..6, 10..11, 11..12]);
        Ok(())
    }

    #[test]
    fn wrong_chunks_are_refused_by_name() {
        let wrong: [(Vec<Vec<Range<usize>>>, &str); 4] = [
            (vec![], "invalid ranks: 0"),
            (vec![vec![4..8, 0..4]], "the ranges of rank 0 must ascend"),
            (vec![vec![0..4], vec![3..8]], "two ranks must not have the same position"),
            (vec![vec![0..4], vec![5..8]], "some rank must have the positions before"),
        ];
        for (ranks, name) in wrong {
            let error = Chunks::new(ranks).expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
        let error = Chunks::zigzag(8, 2).and_then(|chunks| chunks.sequences(&[3, 4])).expect_err("refused");
        assert!(error.to_string().contains("lengths: [3, 4]"), "{error}");
    }
}
