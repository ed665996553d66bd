//! Attention of local queries on keys that come in steps.
use crate::batches::{self, Offsets};
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory};
use crate::partials::Partials;
use crate::shard::Shard;
use crate::tiles::{Schedule, Tile};
use crate::transport::Transport;
use crate::travel::Travel;
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{AttentionRequest, State};
use std::fmt;

/// A forward pass: each step has partial results of some queries, which [`Partials`] merges in the order of
/// the steps.
#[derive(Debug)]
pub(crate) struct Forward<K> {
    shard: Shard,
    schedule: Schedule,
    segments: Vec<Segment>,
    keys: K,
    offsets: Offsets,
    partials: Partials,
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
        let (mut schedules, steps) = batches::schedules(chunks, K::keys_of, shard.mask, shard.q.shape[0])?;
        let schedule = schedules.swap_remove(rank);
        let mut memory = Memory::new(&request.scratch);
        let keys = K::new(&shard, chunks, rank, steps, &mut memory);
        let offsets = Offsets::new(&schedule, &mut memory);
        let tiles = || {
            schedule
                .steps
                .iter()
                .take(steps)
                .enumerate()
                .flat_map(|(step, of)| of.tiles.iter().map(move |tile| (step, tile)))
        };
        let of = |(step, tile): (usize, &Tile)| shard.request(tile, &keys.keys(step), &offsets);
        let partials = Partials::new(comm, &shard, &schedule, tiles().map(of), &mut memory);
        let segments = chunks.segments(rank);
        Ok(Forward { shard, schedule, segments, keys, offsets, partials, memory })
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
        let Forward { shard, schedule, segments, keys, offsets, partials, .. } = &self;
        let all = (&segments[..], &schedule.partials[..]);
        // SAFETY: tiles, merges and transfers use the request's tensors and disjoint parts of its workspace.
        unsafe {
            offsets.write(comm)?;
            keys.pass(comm, |step, keys| {
                for tile in &schedule.steps[step].tiles {
                    let State { o, lse } = partials.of(tile);
                    let mut request = shard.request(tile, keys, offsets);
                    (request.o, request.lse) = (o, Some(lse));
                    comm.launch(&request)?;
                    partials.behind(tile, all).try_for_each(|merge| merge.launch(comm))?;
                }
                Ok(Vec::new())
            })?;
            partials.at_end(all).try_for_each(|merge| merge.launch(comm))
        }
    }
}
