//! Attention of local queries on keys that come in steps.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory};
use crate::shard::{self, Shard};
use crate::tiles::{self, Schedule, Tile};
use crate::transport::Transport;
use crate::travel::Travel;
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{AttentionRequest, LseView, Merge, State, TensorView};
use std::fmt;

/// A forward pass: each step has partial results of some queries, which [`Merge`] merges in the order of the
/// steps.
#[derive(Debug)]
pub(crate) struct Forward<K> {
    shard: Shard,
    schedule: Schedule,
    segments: Vec<Segment>,
    keys: K,
    /// O of the second and all later partial results of a query, and their LSE.
    partials: [u64; 2],
    pub memory: Memory,
}

impl<K: Travel> Forward<K> {
    pub fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        request: &AttentionRequest<'_>,
    ) -> Result<Self, Error> {
        let rank = comm.rank();
        let shard = Shard::new(comm, chunks, request)?;
        shard.contiguous_keys()?;
        let (mut schedules, steps) = Schedule::all(chunks, K::keys_of, shard.mask)?;
        let schedule = schedules.swap_remove(rank);
        let mut memory = Memory::new(&request.scratch);
        let keys = K::new(&shard, chunks, rank, steps, &mut memory);
        let others = schedule.partials.iter().max().map_or(0, |most| most.saturating_sub(1)) as u64;
        let [batch, rows, heads, _] = shard.o.shape;
        let o = memory.take(others * rows as u64 * Shard::row_bytes(&shard.o));
        let lse = memory.take(others * (batch * rows * heads) as u64 * 4);
        let segments = chunks.segments(rank);
        Ok(Forward { shard, schedule, segments, keys, partials: [o, lse], memory })
    }

    /// Enqueues the pass.
    ///
    /// # Safety
    /// The requirements of [`Form::attention`](crate::Form::attention).
    pub unsafe fn run<D: Driver, T: Transport<D>>(
        mut self,
        comm: &Comm<'_, D, T>,
        call: fmt::Arguments<'_>,
    ) -> Result<(), Error> {
        self.memory.rest(0)?;
        comm.begin(call)?;
        if self.shard.is_empty() {
            return Ok(());
        }
        // SAFETY: tiles, merges and transfers use the request's tensors and disjoint parts of its workspace.
        unsafe {
            self.keys.pass(comm, |step, keys| {
                let tiles = &self.schedule.steps[step].tiles;
                tiles.iter().try_for_each(|tile| comm.launch(&self.tile(tile, keys)))?;
                Ok(Vec::new())
            })?;
            self.merge(comm)
        }
    }

    /// Returns where the partial results of this slot lie: the first are those of the request.
    fn state(&self, slot: usize) -> State {
        let Shard { o, lse, .. } = self.shard;
        let Some(other) = slot.checked_sub(1) else { return State::new(o, lse) };
        let [batch, rows, heads, _] = o.shape;
        let (all, values) = (o.shape.iter().product::<usize>() as u64, (batch * heads * rows) as u64);
        let [first_o, first_lse] = self.partials;
        let o = TensorView::bshd(
            first_o.wrapping_add(other as u64 * all * o.element_bytes()),
            all,
            o.dtype,
            o.shape,
        );
        let lse = first_lse.wrapping_add(other as u64 * values * 4);
        State::new(o, LseView::contiguous(lse, values, [batch, heads, rows]))
    }

    /// Returns the launch of a tile on these keys and values.
    fn tile(&self, tile: &Tile, keys: &[TensorView; 2]) -> AttentionRequest<'static> {
        let State { o, lse } = self.state(tile.slot);
        let [k, v] = keys.map(|view| shard::rows(&view, &tile.key_rows));
        let [q, o] = [self.shard.q, o].map(|view| shard::rows(&view, &tile.rows));
        AttentionRequest::dense(q, k, v, o)
            .mask(tile.mask)
            .alignment(tile.alignment)
            .scores(self.shard.scores)
            .lse(shard::lse_rows(&lse, &tile.rows))
    }

    /// Merges the partial results of each query.
    ///
    /// # Safety
    /// The requirements of [`run`](Forward::run).
    unsafe fn merge<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<(), Error> {
        let several = Schedule::groups(&self.schedule.partials).filter(|(_, count)| *count > 1);
        for (segments, count) in several {
            let rows = tiles::rows(&self.segments, &segments);
            let state = |slot| {
                let State { o, lse } = self.state(slot);
                State::new(shard::rows(&o, &rows), shard::lse_rows(&lse, &rows))
            };
            let states: Vec<_> = (0..count).map(state).collect();
            // SAFETY: the caller makes the promises. The merge writes its first state.
            unsafe { comm.launch(&Merge::new(&states, states[0].o).lse(states[0].lse))? };
        }
        Ok(())
    }
}
