//! The work of a rank: tiles of queries and keys, each of which one launch computes.
//!
//! Chunks do not overlap, so a chunk of queries is one of the chunks of a run of keys, or lies before or
//! behind the run. Each pair then has a full mask, a causal mask or a window, which the library's masks
//! express. Nothing else is needed. Queries and keys of two sequences have no tile.
use crate::chunks::{Chunks, Segment};
use crate::sequences::Sequences;
use ferroflash::Error;
use ferroflash::request::{Alignment, Mask};
use std::ops::Range;

/// The mask of a sequence: the largest numbers of visible keys before and after a query's position.
pub(crate) type Sides = (Option<u32>, Option<u32>);

/// Queries of a rank and keys of a rank, which may be another one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tile {
    /// The indices of the query segments.
    pub queries: Range<usize>,
    /// The indices of the key segments.
    pub keys: Range<usize>,
    /// The rows of the queries.
    pub rows: Range<usize>,
    /// The rows of the keys that a query sees, of all rows of the key segments.
    pub key_rows: Range<usize>,
    pub mask: Mask,
    pub alignment: Alignment,
    /// The index of the tile's results among all partial results of its queries.
    pub slot: usize,
    /// The sequences of a varlen launch.
    pub sequences: Option<Sequences>,
}

impl Tile {
    /// Returns the indices of the key segments that some query sees.
    #[cfg_attr(not(feature = "training"), expect(dead_code, reason = "gradients go to the ranks of keys"))]
    pub fn seen(&self) -> Vec<usize> {
        self.sequences.as_ref().map_or_else(|| self.keys.clone().collect(), |of| of.seen.clone())
    }
}

/// The keys that a rank has in a step, and its tiles on them.
#[derive(Debug)]
pub(crate) struct Step {
    #[cfg_attr(not(feature = "training"), expect(dead_code, reason = "gradients go to the ranks of keys"))]
    pub keys: Vec<Segment>,
    pub tiles: Vec<Tile>,
}

/// The work of a rank.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub steps: Vec<Step>,
    /// The number of partial results of each query segment.
    pub partials: Vec<usize>,
}

impl Schedule {
    /// Returns the tiles of queries and of each step's keys.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if a pair of chunks has a mask that the library does not have.
    pub fn new(queries: &[Segment], keys: Vec<Vec<Segment>>, mask: Sides) -> Result<Self, Error> {
        let mut partials = vec![0; queries.len()];
        let step = |keys: Vec<Segment>| {
            let mut tiles = Vec::new();
            for of in queries.chunk_by(|a, b| a.sequence == b.sequence) {
                let first = queries.partition_point(|segment| segment.sequence < of[0].sequence);
                let pair = [first..first + of.len(), sequence(&keys, of[0].sequence)];
                tiles.extend(of_sequence(queries, &keys, pair, mask, &mut partials)?);
            }
            Ok(Step { keys, tiles })
        };
        let steps = keys.into_iter().map(step).collect::<Result<_, Error>>()?;
        Ok(Schedule { steps, partials })
    }

    /// Returns the schedules of all ranks, and the number of steps after which no rank has work.
    ///
    /// # Errors
    /// Returns the errors of [`Schedule::new`].
    pub fn all(
        chunks: &Chunks,
        keys_of: fn(&Chunks, usize) -> Vec<Vec<Segment>>,
        mask: Sides,
    ) -> Result<(Vec<Self>, usize), Error> {
        let of = |rank| Self::new(&chunks.segments(rank), keys_of(chunks, rank), mask);
        let all: Vec<_> = (0..chunks.ranks()).map(of).collect::<Result<_, _>>()?;
        let last =
            |of: &Self| of.steps.iter().rposition(|step| !step.tiles.is_empty()).map_or(0, |step| step + 1);
        let steps = all.iter().map(last).max().unwrap_or(0);
        Ok((all, steps))
    }

    /// Returns ranges of query segments that have equally many partial results, with this number.
    pub fn groups(counts: &[usize]) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut end = 0;
        counts.chunk_by(|a, b| a == b).map(move |group| {
            let segments = end..end + group.len();
            end = segments.end;
            (segments, group[0])
        })
    }
}

/// Returns the rows of several segments.
pub(crate) fn rows(segments: &[Segment], of: &Range<usize>) -> Range<usize> {
    let of = &segments[of.clone()];
    of.first().map_or(0, |segment| segment.rows.start)..of.last().map_or(0, |segment| segment.rows.end)
}

/// Returns the indices of a sequence's segments.
fn sequence(segments: &[Segment], sequence: usize) -> Range<usize> {
    let first = segments.partition_point(|segment| segment.sequence < sequence);
    first..segments.partition_point(|segment| segment.sequence <= sequence)
}

/// Returns the indices of segments whose positions and rows continue each other.
fn runs(segments: &[Segment], of: &Range<usize>) -> Vec<Range<usize>> {
    let continues =
        |a: &Segment, b: &Segment| a.positions.end == b.positions.start && a.rows.end == b.rows.start;
    let mut end = of.start;
    let run = |run: &[Segment]| {
        end += run.len();
        end - run.len()..end
    };
    segments[of.clone()].chunk_by(continues).map(run).collect()
}

/// Returns the tiles of queries and keys of one sequence, and counts their partial results.
fn of_sequence(
    all_queries: &[Segment],
    all_keys: &[Segment],
    [queries, keys]: [Range<usize>; 2],
    mask: Sides,
    partials: &mut [usize],
) -> Result<Vec<Tile>, Error> {
    let are_first = partials[queries.clone()].iter().all(|count| *count == 0);
    let is_own = are_first && all_queries[queries.clone()] == all_keys[keys.clone()];
    let whole = match mask {
        (None, None) => Some(Mask::Full),
        // Rows ascend with positions, so a causal mask of positions is a causal mask of rows.
        (None, Some(0)) => Some(Mask::Causal),
        _ => None,
    };
    if let Some(mask) = whole.filter(|_| is_own) {
        partials[queries.clone()].fill(1);
        let (rows, key_rows) = (rows(all_queries, &queries), rows(all_keys, &keys));
        return Ok(vec![Tile {
            queries,
            keys,
            rows,
            key_rows,
            mask,
            alignment: Alignment::BottomRight,
            slot: 0,
            sequences: None,
        }]);
    }
    let runs = runs(all_keys, &keys);
    let mut all: Vec<Tile> = Vec::new();
    for index in queries {
        let query = &all_queries[index];
        for run in &runs {
            let [first, last] = [&all_keys[run.start], &all_keys[run.end - 1]];
            let positions = first.positions.start..last.positions.end;
            let Some((seen, mask, alignment)) = pair(&query.positions, &positions, mask)? else {
                continue;
            };
            let key_rows = first.rows.start + seen.start..first.rows.start + seen.end;
            let is_seen = |index: &usize| {
                let rows = &all_keys[*index].rows;
                rows.start < key_rows.end && key_rows.start < rows.end
            };
            let start = run.clone().find(is_seen).unwrap_or(run.end);
            let tile = Tile {
                queries: index..index + 1,
                keys: start..start + run.clone().filter(is_seen).count(),
                rows: query.rows.clone(),
                key_rows,
                mask,
                alignment,
                slot: 0,
                sequences: None,
            };
            match all.last_mut().filter(|last| last.queries == tile.queries && joins(last, &tile, all_keys)) {
                Some(last) => {
                    (last.keys.end, last.key_rows.end) = (tile.keys.end, tile.key_rows.end);
                }
                None => all.push(tile),
            }
        }
    }
    // Segments with equally many partial results before this step may share a launch, whose results then have
    // the same slot.
    let mut joined: Vec<Tile> = Vec::new();
    for tile in all {
        let last = joined.last_mut().filter(|last| {
            let is_full = last.mask == Mask::Full && tile.mask == Mask::Full;
            let are_alone = partials[last.queries.end - 1] == last.slot + 1;
            let slots = partials[tile.queries.start] == last.slot;
            is_full
                && are_alone
                && slots
                && last.key_rows == tile.key_rows
                && last.queries.end == tile.queries.start
        });
        let slot = partials[tile.queries.start];
        partials[tile.queries.clone()].iter_mut().for_each(|count| *count += 1);
        match last {
            Some(last) => (last.queries.end, last.rows.end) = (tile.queries.end, tile.rows.end),
            None => joined.push(Tile { slot, ..tile }),
        }
    }
    Ok(joined)
}

/// Returns whether a tile continues the keys of another tile with the same queries.
fn joins(last: &Tile, tile: &Tile, keys: &[Segment]) -> bool {
    let is_full = last.mask == Mask::Full && tile.mask == Mask::Full;
    let are_whole = last.key_rows == rows(keys, &last.keys) && tile.key_rows == rows(keys, &tile.keys);
    is_full && are_whole && last.keys.end == tile.keys.start
}

/// Returns the keys of `keys` that some query sees, from the first key on, and the mask of queries and these
/// keys. `None` if no query sees a key.
///
/// # Errors
/// Returns [`Error::Unsupported`] if the library has no such mask. It has one for chunks that do not overlap.
pub(crate) fn pair(
    queries: &Range<usize>,
    keys: &Range<usize>,
    (left, right): Sides,
) -> Result<Option<(Range<usize>, Mask, Alignment)>, Error> {
    let (m, mut n) = (queries.len() as i64, keys.len() as i64);
    // Query i sees key j if low <= j - i <= high.
    let offset = queries.start as i64 - keys.start as i64;
    let mut low = left.map(|left| offset - i64::from(left)).filter(|low| *low > 1 - m);
    let mut high = right.map(|right| offset + i64::from(right)).filter(|high| *high < n - 1);
    let first = low.unwrap_or(0).max(0);
    n -= first;
    low = low.map(|low| low - first);
    high = high.map(|high| high - first);
    if let Some(high) = high {
        n = n.min(m + high);
    }
    if m == 0 || n <= 0 {
        return Ok(None);
    }
    high = high.filter(|high| *high < n - 1);
    // Bottom-right, query i has the position of key i + n - m.
    let (to_left, to_right) = (low.map(|low| n - m - low), high.map(|high| high + m - n));
    let bottom = to_left.is_none_or(|left| left >= 0);
    let (alignment, left, right) = match bottom {
        true => (Alignment::BottomRight, to_left, to_right),
        false => (Alignment::TopLeft, low.map(|low| -low), high),
    };
    let side = |side: Option<i64>| side.map(u32::try_from).transpose();
    let (Ok(left), Ok(right)) = (side(left), side(right)) else {
        let feature = format!("a window of {left:?} to {right:?} keys on chunks {queries:?} and {keys:?}");
        return Err(Error::unsupported(feature, "chunks must be equal or lie behind each other"));
    };
    let mask = match (left, right) {
        (None, None) => Mask::Full,
        (None, Some(0)) => Mask::Causal,
        (left, right) => Mask::Window { left, right },
    };
    let first = first as usize;
    Ok(Some((first..first + n as usize, mask, alignment)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::Gather;
    use crate::ring::Ring;
    use crate::travel::Travel as _;

    /// Whether a mask of a tile shows a key: the rule of `Mask` and `Alignment`.
    fn shows(tile: &Tile, i: usize, j: usize) -> bool {
        let (m, n) = (tile.rows.len() as i64, tile.key_rows.len() as i64);
        let position = i as i64 + if tile.alignment == Alignment::BottomRight { n - m } else { 0 };
        let (left, right) = tile.mask.sides();
        let distance = j as i64 - position;
        left.is_none_or(|left| -distance <= i64::from(left))
            && right.is_none_or(|right| distance <= i64::from(right))
    }

    /// Every visible pair of positions is in exactly one tile, no hidden pair is in any, and the slots of a
    /// segment's tiles count up.
    #[test]
    fn tiles_cover_the_mask_exactly_once() -> Result<(), Error> {
        let masks =
            [(None, None), (None, Some(0)), (Some(3), Some(0)), (Some(9), Some(2)), (Some(0), Some(7))];
        let odd = Chunks::new(vec![vec![3..4, 9..16], vec![], vec![0..3, 4..9, 16..20]])?;
        let mut all = vec![odd];
        for (positions, ranks) in [(1, 2), (7, 2), (20, 1), (24, 2), (29, 3), (32, 4)] {
            all.extend([Chunks::zigzag(positions, ranks)?, Chunks::contiguous(positions, ranks)?]);
        }
        all.push(Chunks::packed(&[9, 1, 0, 30, 16], 2)?);
        all.push(Chunks::contiguous(41, 3)?.sequences(&[20, 2, 19])?);
        let forms = [Ring::keys_of, Gather::keys_of];
        let cases = all.iter().flat_map(|chunks| masks.map(|mask| (chunks, mask)));
        for (form, chunks, mask) in cases.flat_map(|(chunks, mask)| forms.map(|form| (form, chunks, mask))) {
            for rank in 0..chunks.ranks() {
                let own = chunks.segments(rank);
                let schedule = Schedule::new(&own, form(chunks, rank), mask)?;
                let rows = |segments: &[Segment]| -> Vec<[usize; 2]> {
                    let of = |segment: &Segment| {
                        let sequence = segment.sequence;
                        segment.positions.clone().map(move |position| [sequence, position])
                    };
                    segments.iter().flat_map(of).collect()
                };
                let queries = rows(&own);
                let mut slots = vec![0; schedule.partials.len()];
                for (step, Step { keys, tiles }) in schedule.steps.iter().enumerate() {
                    let context = format!("{chunks:?} {mask:?} rank {rank} step {step}: {tiles:?}");
                    let keys = rows(keys);
                    let mut seen = vec![0; queries.len() * keys.len()];
                    for tile in tiles {
                        for (i, j) in
                            tile.rows.clone().flat_map(|i| tile.key_rows.clone().map(move |j| (i, j)))
                        {
                            let shown = shows(tile, i - tile.rows.start, j - tile.key_rows.start);
                            seen[i * keys.len() + j] += usize::from(shown);
                        }
                        for slot in &mut slots[tile.queries.clone()] {
                            assert_eq!(*slot, tile.slot, "{context}");
                            *slot += 1;
                        }
                    }
                    for (at, count) in seen.iter().enumerate() {
                        let [[of_query, query], [of_key, key]] =
                            [queries[at / keys.len()], keys[at % keys.len()]];
                        let distance = key as i64 - query as i64;
                        let is_left = mask.0.is_none_or(|left| -distance <= i64::from(left));
                        let is_right = mask.1.is_none_or(|right| distance <= i64::from(right));
                        let expected = usize::from(is_left && is_right && of_query == of_key);
                        assert_eq!(*count, expected, "{context}");
                    }
                }
                assert_eq!(slots, schedule.partials);
            }
        }
        Ok(())
    }

    /// With a causal mask, a zigzag has one launch per step, whose mask is full or causal.
    #[test]
    fn a_zigzag_has_one_launch_per_step() -> Result<(), Error> {
        let chunks = Chunks::zigzag(80, 4)?;
        for rank in 0..4 {
            let keys = Ring::keys_of(&chunks, rank);
            let schedule = Schedule::new(&chunks.segments(rank), keys, (None, Some(0)))?;
            for (step, Step { tiles, .. }) in schedule.steps.iter().enumerate() {
                let [tile] = &tiles[..] else { panic!("rank {rank}, step {step}: {tiles:?}") };
                let expected = if step == 0 { Mask::Causal } else { Mask::Full };
                assert_eq!(tile.mask, expected, "rank {rank}, step {step}");
                let work = tile.rows.len() * tile.key_rows.len();
                assert_eq!(work, if step == 0 { 400 } else { 200 }, "rank {rank}, step {step}");
            }
        }
        Ok(())
    }

    /// With a causal mask or a window, each gathered chunk of queries has one launch and no merge.
    #[test]
    fn a_gathered_chunk_has_one_launch() -> Result<(), Error> {
        let chunks = Chunks::zigzag(80, 4)?;
        for (rank, mask) in (0..4).flat_map(|rank| [(rank, (None, Some(0))), (rank, (Some(25), Some(3)))]) {
            let schedule = Schedule::new(&chunks.segments(rank), Gather::keys_of(&chunks, rank), mask)?;
            assert_eq!(schedule.partials, [1, 1], "rank {rank}, {mask:?}");
            assert_eq!(schedule.steps[0].tiles.len(), 2, "rank {rank}, {mask:?}");
        }
        Ok(())
    }
}
