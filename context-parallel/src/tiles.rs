//! The work of a rank: tiles of queries and keys, each of which one launch computes.
//!
//! Chunks do not overlap, so two chunks are equal, or one lies before the other. Each pair of chunks then has
//! a full mask, a causal mask or a window, which the library's masks express. Nothing else is needed.
use crate::chunks::{Chunks, Segment};
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
}

/// The tiles of a rank, by the steps of the ring. In step `s`, rank `r` has the keys of rank `r - s`.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub steps: Vec<Vec<Tile>>,
    /// The number of partial results of each query segment.
    pub partials: Vec<usize>,
}

impl Schedule {
    /// # Errors
    /// Returns [`Error::Unsupported`] if a pair of chunks has a mask that the library does not have.
    pub fn new(chunks: &Chunks, rank: usize, mask: Sides) -> Result<Self, Error> {
        let (ranks, queries) = (chunks.ranks(), chunks.segments(rank));
        let mut partials = vec![0; queries.len()];
        let step =
            |step| tiles(&queries, &chunks.segments((rank + ranks - step) % ranks), mask, &mut partials);
        let steps = (0..ranks).map(step).collect::<Result<_, _>>()?;
        Ok(Schedule { steps, partials })
    }

    /// Returns the schedules of all ranks, and the number of steps after which no rank has work.
    ///
    /// # Errors
    /// Returns the errors of [`Schedule::new`].
    pub fn all(chunks: &Chunks, mask: Sides) -> Result<(Vec<Self>, usize), Error> {
        let all: Vec<_> =
            (0..chunks.ranks()).map(|rank| Self::new(chunks, rank, mask)).collect::<Result<_, _>>()?;
        let last =
            |of: &Schedule| of.steps.iter().rposition(|tiles| !tiles.is_empty()).map_or(0, |step| step + 1);
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

/// Returns the tiles of queries and keys, and counts their partial results.
fn tiles(
    queries: &[Segment],
    keys: &[Segment],
    mask: Sides,
    partials: &mut [usize],
) -> Result<Vec<Tile>, Error> {
    let is_own = queries == keys && !queries.is_empty() && partials.iter().all(|count| *count == 0);
    let whole = match mask {
        (None, None) => Some(Mask::Full),
        // Rows ascend with positions, so a causal mask of positions is a causal mask of rows.
        (None, Some(0)) => Some(Mask::Causal),
        _ => None,
    };
    if let Some(mask) = whole.filter(|_| is_own) {
        partials.fill(1);
        let all = 0..queries.len();
        let of = rows(queries, &all);
        let (key_rows, alignment) = (of.clone(), Alignment::BottomRight);
        return Ok(vec![Tile {
            queries: all.clone(),
            keys: all,
            rows: of,
            key_rows,
            mask,
            alignment,
            slot: 0,
        }]);
    }
    let mut all: Vec<Tile> = Vec::new();
    for (index, query) in queries.iter().enumerate() {
        for (key_index, key) in keys.iter().enumerate() {
            let Some((seen, mask, alignment)) = pair(&query.positions, &key.positions, mask)? else {
                continue;
            };
            let tile = Tile {
                queries: index..index + 1,
                keys: key_index..key_index + 1,
                rows: query.rows.clone(),
                key_rows: key.rows.start + seen.start..key.rows.start + seen.end,
                mask,
                alignment,
                slot: 0,
            };
            match all.last_mut().filter(|last| last.queries == tile.queries && joins(last, &tile, keys)) {
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
        for (chunks, mask) in all.iter().flat_map(|chunks| masks.map(|mask| (chunks, mask))) {
            let ranks = chunks.ranks();
            for rank in 0..ranks {
                let schedule = Schedule::new(chunks, rank, mask)?;
                let positions = |rank| chunks.of(rank).iter().cloned().flatten().collect::<Vec<_>>();
                let own = positions(rank);
                let mut slots = vec![0; schedule.partials.len()];
                for (step, tiles) in schedule.steps.iter().enumerate() {
                    let keys = positions((rank + ranks - step) % ranks);
                    let mut seen = vec![0; own.len() * keys.len()];
                    for tile in tiles {
                        for (i, j) in
                            tile.rows.clone().flat_map(|i| tile.key_rows.clone().map(move |j| (i, j)))
                        {
                            let shown = shows(tile, i - tile.rows.start, j - tile.key_rows.start);
                            seen[i * keys.len() + j] += usize::from(shown);
                        }
                        for slot in &mut slots[tile.queries.clone()] {
                            assert_eq!(*slot, tile.slot, "{chunks:?} {mask:?} rank {rank}: {tile:?}");
                            *slot += 1;
                        }
                    }
                    for (at, count) in seen.iter().enumerate() {
                        let distance = keys[at % keys.len()] as i64 - own[at / keys.len()] as i64;
                        let is_left = mask.0.is_none_or(|left| -distance <= i64::from(left));
                        let is_right = mask.1.is_none_or(|right| distance <= i64::from(right));
                        let expected = usize::from(is_left && is_right);
                        assert_eq!(
                            *count, expected,
                            "{chunks:?} {mask:?} rank {rank} step {step}: {tiles:?}"
                        );
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
            let schedule = Schedule::new(&chunks, rank, (None, Some(0)))?;
            for (step, tiles) in schedule.steps.iter().enumerate() {
                let [tile] = &tiles[..] else { panic!("rank {rank}, step {step}: {tiles:?}") };
                let expected = if step == 0 { Mask::Causal } else { Mask::Full };
                assert_eq!(tile.mask, expected, "rank {rank}, step {step}");
                let work = tile.rows.len() * tile.key_rows.len();
                assert_eq!(work, if step == 0 { 400 } else { 200 }, "rank {rank}, step {step}");
            }
        }
        Ok(())
    }
}
