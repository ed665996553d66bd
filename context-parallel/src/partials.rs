//! The partial results of a rank's queries, and their merges.
use crate::chunks::Segment;
use crate::comm::{Comm, Memory, NOWHERE};
use crate::shard::{self, Shard};
use crate::tiles::{self, Schedule, Tile};
use crate::transport::Transport;
use ferroflash::driver::Driver;
use ferroflash::request::{AttentionRequest, LseView, Mask, Merge, State, TensorView};
use ferroflash::{DType, Error};
use std::ops::Range;

/// Where the results of tiles lie, and which launches merge them.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a pass has one")]
pub(crate) enum Partials {
    /// States in f32, where the library leaves them: each state is merged behind its tile into those before
    /// it. O is rounded once, by the last merge of a row.
    Exact {
        /// The states so far, of all rows.
        so_far: State,
        /// O and LSE of one tile.
        tile: State,
        result: State,
    },
    /// States in the dtype of O: one launch merges all states of a row.
    Rounded {
        result: State,
        /// O and LSE of the second and all later states.
        others: [u64; 2],
    },
}

/// A merge of partial results: of one or more states, into a result.
pub(crate) struct Merging {
    states: Vec<State>,
    result: State,
}

impl Merging {
    /// Enqueues the merge.
    ///
    /// # Safety
    /// The requirements of [`Form::attention`](crate::Form::attention).
    pub unsafe fn launch<D: Driver, T: Transport<D>>(self, comm: &Comm<'_, D, T>) -> Result<(), Error> {
        let Merging { states, result } = self;
        // SAFETY: the caller makes the promises. A merge may write its first state.
        unsafe { comm.launch(&Merge::new(&states, result.o).lse(result.lse)) }
    }
}

impl Partials {
    /// Takes memory for the partial results of these tiles.
    pub fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        shard: &Shard,
        schedule: &Schedule,
        tiles: impl Iterator<Item = AttentionRequest<'static>>,
        memory: &mut Memory,
    ) -> Self {
        let result = State::new(shard.o, shard.lse);
        let most = schedule.partials.iter().copied().max().unwrap_or(0);
        let [batch, rows, heads, _] = shard.o.shape;
        if most > 1 && are_exact(comm, tiles) {
            let mut state = |rows: usize| {
                let [_, _, _, columns] = shard.o.shape;
                let elements = (batch * rows * heads * columns) as u64;
                let (o, lse) = (memory.take(elements * 4), memory.take((batch * rows * heads) as u64 * 4));
                exact([o, lse], [batch, rows, heads, columns])
            };
            let so_far = state(rows);
            let tiles = schedule.steps.iter().flat_map(|step| &step.tiles);
            let longest = tiles.filter(|tile| !is_whole(tile, rows)).map(|tile| tile.rows.len()).max();
            return Partials::Exact { so_far, tile: state(longest.unwrap_or(0)), result };
        }
        let others = most.saturating_sub(1) as u64;
        let o = memory.take(others * rows as u64 * Shard::row_bytes(&shard.o));
        let lse = memory.take(others * (batch * rows * heads) as u64 * 4);
        Partials::Rounded { result, others: [o, lse] }
    }

    /// Returns the state that a tile writes.
    pub fn of(&self, tile: &Tile) -> State {
        match self {
            Partials::Exact { so_far, .. } if is_whole(tile, so_far.o.shape[1]) => *so_far,
            Partials::Exact { tile: one, .. } => {
                let [batch, _, heads, columns] = one.o.shape;
                exact([one.o.address, one.lse.address], [batch, tile.rows.len(), heads, columns])
            }
            Partials::Rounded { result, others } => rows(&slot(result, others, tile.slot), &tile.rows),
        }
    }

    /// Returns the merges behind the launch of a tile.
    pub fn behind(
        &self,
        tile: &Tile,
        (segments, counts): (&[Segment], &[usize]),
    ) -> impl Iterator<Item = Merging> {
        let mut all = Vec::new();
        if let Partials::Exact { so_far, result, .. } = self {
            let own = self.of(tile);
            let is_direct = own.o.address == so_far.o.address;
            for (group, count) in Schedule::groups(&counts[tile.queries.clone()]) {
                let group = group.start + tile.queries.start..group.end + tile.queries.start;
                let of = tiles::rows(segments, &group);
                let is_last = tile.slot + 1 == count;
                if is_direct && !is_last {
                    continue;
                }
                let own = rows(&own, &(of.start - tile.rows.start..of.end - tile.rows.start));
                let before = (tile.slot > 0).then(|| rows(so_far, &of));
                let result = rows(if is_last { result } else { so_far }, &of);
                all.push(Merging { states: before.into_iter().chain([own]).collect(), result });
            }
        }
        all.into_iter()
    }

    /// Returns the merges behind all tiles.
    pub fn at_end(&self, (segments, counts): (&[Segment], &[usize])) -> impl Iterator<Item = Merging> {
        let several = Schedule::groups(counts).filter(|(_, count)| *count > 1);
        several.filter_map(|(group, count)| {
            let Partials::Rounded { result, others } = self else { return None };
            let of = tiles::rows(segments, &group);
            let states: Vec<_> = (0..count).map(|index| rows(&slot(result, others, index), &of)).collect();
            Some(Merging { result: states[0], states })
        })
    }
}

/// Returns whether the first state of all rows is the result of one tile.
fn is_whole(tile: &Tile, rows: usize) -> bool {
    tile.slot == 0 && tile.rows == (0..rows)
}

/// Returns whether the library leaves the results of all tiles as states in f32.
fn are_exact<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    tiles: impl Iterator<Item = AttentionRequest<'static>>,
) -> bool {
    let mut known: Vec<Mask> = Vec::new();
    tiles.into_iter().all(|mut of| {
        // Whether there is a kernel depends on the mask, and not on the rows.
        if known.contains(&of.mask) {
            return true;
        }
        known.push(of.mask);
        // Nothing overlaps these addresses, which the launch does not have.
        let State { o, lse } = exact([1, 2].map(|part| NOWHERE + (part << 56)), of.o.shape);
        of.o = o;
        comm.check(&of.lse(lse)).is_ok()
    })
}

/// Returns a state in f32 at these addresses, as the library leaves it.
fn exact([o, lse]: [u64; 2], shape: [usize; 4]) -> State {
    let [batch, rows, heads, columns] = shape;
    let values = batch * rows * heads;
    let o = TensorView::bhsd(o, (values * columns) as u64, DType::F32, shape);
    State::new(o, LseView::contiguous(lse, values as u64, [batch, heads, rows]))
}

/// Returns where the partial results of a slot lie: the first are those of the request.
fn slot(result: &State, others: &[u64; 2], slot: usize) -> State {
    let Some(other) = slot.checked_sub(1) else { return *result };
    let o = result.o;
    let [batch, rows, heads, _] = o.shape;
    let (all, values) = (o.shape.iter().product::<usize>() as u64, (batch * heads * rows) as u64);
    let behind = |first: u64, bytes: u64| first.wrapping_add(other as u64 * bytes);
    let lse = LseView::contiguous(behind(others[1], values * 4), values, [batch, heads, rows]);
    State::new(TensorView::bshd(behind(others[0], all * o.element_bytes()), all, o.dtype, o.shape), lse)
}

/// Returns some rows of a state.
fn rows(state: &State, of: &Range<usize>) -> State {
    State::new(shard::rows(&state.o, of), shard::lse_rows(&state.lse, of))
}
