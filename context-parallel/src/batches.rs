//! Many sequences: one varlen launch computes a step's tiles of all sequences.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory};
use crate::sequences::Sequences;
use crate::tiles::{self, Schedule, Sides, Step, Tile};
use crate::transport::Transport;
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{Alignment, AttentionRequest, Index, Mask, TensorView, VarlenKeys, VarlenQueries};
use std::ops::Range;

/// The least number of tiles of a step for a varlen launch. A varlen launch rounds its results, and writes
/// all rows; launches of few sequences leave states in f32 of the rows that see keys.
const LEAST: usize = 3;

/// Returns the sequences of a step's tiles, or `None` if one launch cannot compute them.
fn sequences(Step { keys, tiles }: &Step, queries: usize) -> Option<Sequences> {
    let all_keys = tiles::rows(keys, &(0..keys.len())).end;
    let mask = tiles.first()?.mask;
    let is_varlen = |tile: &Tile| {
        let is_plain =
            tile.mask == Mask::Full || tile.mask == Mask::Causal && tile.alignment == Alignment::BottomRight;
        is_plain && tile.mask == mask
    };
    if !tiles.iter().all(is_varlen) {
        return None;
    }
    let (mut starts, mut longest, mut at) = ([vec![0], vec![0]], [2, 1], [0; 2]);
    let mut advance = |to: [usize; 2]| {
        for part in 0..2 {
            let length = to[part].checked_sub(at[part])?;
            longest[part] = longest[part].max(length);
            starts[part].push(i32::try_from(to[part]).ok()?);
        }
        at = to;
        Some(())
    };
    let mut end = [0; 2];
    let ends = tiles.iter().map(|tile| (&tile.rows, &tile.key_rows));
    for (rows, key_rows) in ends.chain([(&(queries..queries), &(all_keys..all_keys))]) {
        // Neither queries without keys nor keys without queries see each other.
        if rows.start != end[0] {
            advance([rows.start, end[1]])?;
        }
        if key_rows.start != end[1] {
            advance([rows.start, key_rows.start])?;
        }
        if !rows.is_empty() {
            advance([rows.end, key_rows.end])?;
        }
        end = [rows.end, key_rows.end];
    }
    let seen = tiles.iter().flat_map(|tile| tile.keys.clone()).collect();
    Some(Sequences { starts, longest, seen, first: 0 })
}

/// Returns [`Schedule::all`], with varlen launches where they pay. Varlen sequences have one batch.
///
/// # Errors
/// Returns the errors of [`Schedule::all`].
pub(crate) fn schedules(
    chunks: &Chunks,
    keys_of: fn(&Chunks, usize) -> Vec<Vec<Segment>>,
    mask: Sides,
    batch: usize,
) -> Result<(Vec<Schedule>, usize), Error> {
    let (all, steps) = Schedule::all(chunks, keys_of, mask)?;
    if batch != 1 {
        return Ok((all, steps));
    }
    let batched = |(rank, of): (usize, Schedule)| of.batched(chunks.rows(rank));
    Ok((all.into_iter().enumerate().map(batched).collect(), steps))
}

/// Returns the varlen launch of whole sequences, which lie one behind the other, if it pays.
pub(crate) fn whole(sequences: &[Range<usize>], mask: Sides, batch: usize) -> Option<Sequences> {
    let is_plain = mask.0.is_none() && matches!(mask.1, None | Some(0));
    if sequences.len() < LEAST || batch != 1 || !is_plain {
        return None;
    }
    let ends = sequences.iter().map(|of| i32::try_from(of.end).ok()).collect::<Option<Vec<_>>>()?;
    let starts: Vec<i32> = std::iter::once(0).chain(ends).collect();
    let longest = sequences.iter().map(ExactSizeIterator::len).max().unwrap_or(0).max(2);
    Some(Sequences { starts: [starts.clone(), starts], longest: [longest; 2], seen: vec![], first: 0 })
}

impl Schedule {
    /// Returns the schedule with one varlen launch per step, if steps have tiles of many sequences that one
    /// launch computes.
    fn batched(self, queries: usize) -> Self {
        if self.steps.iter().all(|step| step.tiles.len() < LEAST) {
            return self;
        }
        let of = |step: &Step| match step.tiles.is_empty() {
            true => Some(None),
            false => sequences(step, queries).map(Some),
        };
        let Some(all) = self.steps.iter().map(of).collect::<Option<Vec<_>>>() else { return self };
        let (mut slots, mut first, count) = (0.., 0, self.partials.len());
        let batch = |(step, sequences): (Step, Option<Sequences>)| {
            let tile = sequences.map(|sequences| {
                let sequences = Sequences { first, ..sequences };
                first += 2 * sequences.starts[0].len();
                let slot = slots.next().unwrap_or(0);
                let key_rows = tiles::rows(&step.keys, &(0..step.keys.len()));
                Tile {
                    queries: 0..count,
                    keys: 0..step.keys.len(),
                    rows: 0..queries,
                    key_rows,
                    mask: step.tiles[0].mask,
                    alignment: Alignment::BottomRight,
                    slot,
                    sequences: Some(sequences),
                }
            });
            Step { tiles: tile.into_iter().collect(), ..step }
        };
        let steps: Vec<_> = self.steps.into_iter().zip(all).map(batch).collect();
        let partials = vec![slots.start; count];
        Schedule { steps, partials }
    }
}

/// The offsets of all varlen launches of a pass, in the workspace.
#[derive(Debug)]
pub(crate) struct Offsets {
    address: u64,
    values: Vec<u8>,
}

impl Offsets {
    /// Takes memory for the offsets of a schedule.
    pub fn new(schedule: &Schedule, memory: &mut Memory) -> Self {
        let tiles = schedule.steps.iter().flat_map(|step| &step.tiles);
        Self::of_launches(tiles.filter_map(|tile| tile.sequences.as_ref()), memory)
    }

    /// Takes memory for the offsets of launches.
    pub fn of_launches<'a>(launches: impl Iterator<Item = &'a Sequences>, memory: &mut Memory) -> Self {
        let all = launches.flat_map(|of| of.starts.iter().flatten());
        let values: Vec<u8> = all.flat_map(|start| start.to_le_bytes()).collect();
        Offsets { address: memory.take(values.len() as u64), values }
    }

    /// Returns the varlen launch of sequences.
    pub const fn request(&self, of: &Sequences, [q, k, v, o]: [TensorView; 4]) -> AttentionRequest<'static> {
        let (count, [most_q, most_k]) = (of.starts[0].len() as u64, of.longest);
        let first = self.address.wrapping_add(of.first as u64 * 4);
        let queries = VarlenQueries::new(of.count(), Index::new(first, count), most_q);
        let keys = VarlenKeys::new(Index::new(first.wrapping_add(count * 4), count), most_k);
        AttentionRequest::varlen(q, k, v, o, queries, keys)
    }

    /// Enqueues a copy of the offsets to the workspace.
    ///
    /// # Safety
    /// The requirements of [`Transport::write`] for memory.
    pub unsafe fn write<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<(), Error> {
        if self.values.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller makes the promises.
        unsafe { comm.write(self.address, &self.values) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::Gather;
    use crate::ring::Ring;
    use crate::travel::Travel as _;

    /// Whether a causal or full mask shows a key.
    fn shows(mask: Mask, [queries, keys]: [usize; 2], i: usize, j: usize) -> bool {
        mask == Mask::Full || j + queries <= i + keys
    }

    /// The pairs of query rows and key rows of a step.
    fn pairs(tiles: &[Tile]) -> Vec<[usize; 2]> {
        let mut all = Vec::new();
        for tile in tiles {
            let ends = tile.sequences.as_ref().map(|of| {
                let [q, k] = &of.starts;
                let one = |at: usize| {
                    let range = |of: &[i32]| of[at] as usize..of[at + 1] as usize;
                    (range(q), range(k))
                };
                (0..of.count()).map(one).collect()
            });
            for (rows, keys) in ends.unwrap_or_else(|| vec![(tile.rows.clone(), tile.key_rows.clone())]) {
                let lengths = [rows.len(), keys.len()];
                for (i, row) in rows.enumerate() {
                    let seen = keys.clone().enumerate().filter(|(j, _)| shows(tile.mask, lengths, i, *j));
                    all.extend(seen.map(|(_, key)| [row, key]));
                }
            }
        }
        all.sort_unstable();
        all
    }

    /// A varlen launch computes the pairs of its step's tiles, and each row has a result of each launch.
    #[test]
    fn one_launch_computes_a_step_of_many_sequences() -> Result<(), Error> {
        let packed = |ranks| Chunks::packed(&[9, 1, 0, 30, 16, 2, 2, 5], ranks);
        let contiguous = Chunks::contiguous(41, 3)?.sequences(&[20, 2, 1, 3, 15])?;
        let mut batched = 0;
        for (chunks, mask) in [
            (packed(2)?, (None, Some(0))),
            (packed(3)?, (None, Some(0))),
            (packed(2)?, (None, None)),
            (packed(2)?, (Some(3), Some(0))),
            (contiguous, (None, Some(0))),
        ] {
            for keys_of in [Ring::keys_of, Gather::keys_of] {
                let (all, _) = Schedule::all(&chunks, keys_of, mask)?;
                let (of_batches, _) = schedules(&chunks, keys_of, mask, 1)?;
                for (rank, (tiles, batches)) in all.iter().zip(&of_batches).enumerate() {
                    let context = format!("{chunks:?} {mask:?} rank {rank}: {batches:?}");
                    for (tiles, batches) in tiles.steps.iter().zip(&batches.steps) {
                        assert_eq!(pairs(&tiles.tiles), pairs(&batches.tiles), "{context}");
                        let seen = |tiles: &[Tile]| {
                            let mut all: Vec<_> = tiles.iter().flat_map(Tile::seen).collect();
                            all.sort_unstable();
                            all.dedup();
                            all
                        };
                        assert_eq!(seen(&tiles.tiles), seen(&batches.tiles), "{context}");
                    }
                    let is_batch = |tile: &&Tile| tile.sequences.is_some();
                    let launches: Vec<_> = batches.steps.iter().flat_map(|step| &step.tiles).collect();
                    if launches.iter().any(is_batch) {
                        batched += 1;
                        assert!(launches.iter().all(is_batch), "{context}");
                        assert!(launches.iter().map(|tile| tile.slot).eq(0..launches.len()), "{context}");
                        assert!(batches.partials.iter().all(|count| *count == launches.len()), "{context}");
                    }
                }
                // Several batches have no varlen sequences.
                let (several, _) = schedules(&chunks, keys_of, mask, 2)?;
                assert!(
                    several
                        .iter()
                        .flat_map(|of| &of.steps)
                        .flat_map(|step| &step.tiles)
                        .all(|tile| { tile.sequences.is_none() })
                );
            }
        }
        assert!(batched >= 6, "{batched}");
        Ok(())
    }
}
