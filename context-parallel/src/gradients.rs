//! The gradients of local queries, and of keys that come in steps: dK and dV go to the ranks of the keys.
use crate::batches::{self, Offsets};
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory, receive, send};
use crate::shard::{self, Shard};
use crate::tiles::{self, Schedule, Step, Tile};
use crate::transport::{Transfer, Transport};
use crate::travel::Travel;
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{AttentionBackward, LseView, Scratch, Sum, TensorView};
use std::fmt;
use std::ops::Range;

/// A backward pass.
///
/// In each step, a rank computes the gradients of the keys that it has, and sends them to the ranks to which
/// the keys belong, beside the next step. Each step's dQ, dK and dV are rounded to the gradients' dtype. At
/// the end, one launch per gradient adds the steps in f32 and in a fixed order, and rounds once: an element
/// has two roundings, however many ranks there are.
#[derive(Debug)]
pub(crate) struct Backward<K> {
    shard: Shard,
    d_o: TensorView,
    d_lse: Option<LseView>,
    /// dQ, dK and dV.
    gradients: [TensorView; 3],
    schedules: Vec<Schedule>,
    segments: Vec<Segment>,
    keys: K,
    offsets: Offsets,
    steps: usize,
    returns: Returns,
    /// The parts of dQ, dK and dV, one behind the other: [`Backward::part`] has the places.
    parts: [TensorView; 3],
    /// Gradients of keys of other ranks, one pair for each parity of a step.
    sent: [[TensorView; 2]; 2],
    rank: usize,
    memory: Memory,
}

/// The parts of dK and dV that come home to a rank.
#[derive(Debug)]
struct Returns {
    /// The parts of each step, in the order of senders and of their tiles.
    steps: Vec<Vec<Return>>,
    /// The number of parts of each key segment.
    counts: Vec<usize>,
}

/// The gradients of a key segment, by a tile of a rank.
#[derive(Debug)]
struct Return {
    sender: usize,
    tile: usize,
    segment: usize,
    /// The index among all parts of the segment.
    part: usize,
}

impl Returns {
    fn new(schedules: &[Schedule], home: usize, segments: usize) -> Self {
        let mut counts = vec![0; segments];
        let mut of_step = |step: usize| {
            let mut all = Vec::new();
            for (sender, schedule) in schedules.iter().enumerate() {
                let Step { keys, tiles } = &schedule.steps[step];
                for (index, tile) in tiles.iter().enumerate() {
                    let seen = tile.seen().into_iter().map(|key| &keys[key]);
                    for key in seen.filter(|key| key.home.rank == home) {
                        let segment = key.home.index;
                        all.push(Return { sender, tile: index, segment, part: counts[segment] });
                        counts[segment] += 1;
                    }
                }
            }
            all
        };
        let steps = (0..schedules[home].steps.len()).map(&mut of_step).collect();
        Returns { steps, counts }
    }

    /// Returns the part that a tile of the rank itself writes, if all of its keys belong to the rank, and are
    /// in one part.
    fn own(&self, step: usize, rank: usize, tile: usize, keys: &[Segment]) -> Option<usize> {
        let parts = || self.steps[step].iter().filter(|of| (of.sender, of.tile) == (rank, tile));
        let part = parts().next()?.part;
        // A part of keys that no query of the tile sees may be another tile's.
        let are_home = keys.iter().all(|key| key.home.rank == rank) && parts().count() == keys.len();
        (are_home && parts().all(|of| of.part == part)).then_some(part)
    }
}

/// Where a tile writes dK and dV.
#[derive(Debug)]
struct Place {
    /// The rows of the tile's key segments, among the keys of the step.
    rows: Range<usize>,
    /// These rows of dK and dV.
    gradients: [TensorView; 2],
    /// Whether the place is a part of the own rank, so that nothing is sent.
    is_home: bool,
}

impl<K: Travel> Backward<K> {
    pub fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        backward: &AttentionBackward<'_>,
    ) -> Result<Self, Error> {
        let rank = comm.rank();
        let shard = Shard::new(comm, chunks, &backward.forward)?;
        shard.contiguous_keys()?;
        let AttentionBackward { d_o, d_lse, scratch, .. } = *backward;
        let gradients @ [_, dk, dv] = shard.gradients(comm, backward)?;
        let (schedules, steps) = batches::schedules(chunks, K::keys_of, shard.mask, shard.q.shape[0])?;
        let segments = chunks.segments(rank);
        let returns = Returns::new(&schedules, rank, segments.len());
        let mut memory = Memory::new(&scratch);
        let keys = K::new(&shard, chunks, rank, steps, &mut memory);
        let offsets = Offsets::new(&schedules[rank], &mut memory);
        // A gradient with one part has no memory for parts: its launch writes the gradient.
        let counts = [&schedules[rank].partials, &returns.counts, &returns.counts];
        let most = counts.map(|counts| counts.iter().copied().max().filter(|most| *most > 1).unwrap_or(0));
        let parts = [0, 1, 2].map(|of| {
            let [batch, rows, ..] = gradients[of].shape;
            match most[of] {
                0 => gradients[of],
                most => memory.tensor(&gradients[of], [most * batch, rows]),
            }
        });
        let mut pass = Backward {
            shard,
            d_o,
            d_lse,
            gradients,
            schedules,
            segments,
            keys,
            offsets,
            steps,
            returns,
            parts,
            sent: [[dk, dv]; 2],
            rank,
            memory,
        };
        pass.sent = [0, 1].map(|parity| {
            let steps = (parity..steps).step_by(2);
            let rows = steps.map(|step| pass.sent_rows(step)).max().unwrap_or(0);
            [dk, dv].map(|view| pass.memory.tensor(&view, [view.shape[0], rows]))
        });
        Ok(pass)
    }

    /// Enqueues the pass.
    ///
    /// # Safety
    /// The requirements of [`Form::backward`](crate::Form::backward).
    pub unsafe fn run<D: Driver, T: Transport<D>>(
        mut self,
        comm: &Comm<'_, D, T>,
        call: fmt::Arguments<'_>,
    ) -> Result<(), Error> {
        let [address, bytes] = self.memory.rest(1)?;
        comm.begin(call)?;
        if self.shard.is_empty() {
            return Ok(());
        }
        let scratch = Scratch::workspace(address, bytes);
        // SAFETY: tiles, sums and transfers use the request's tensors and disjoint parts of its workspace.
        unsafe {
            self.offsets.write(comm)?;
            self.keys.pass(comm, |step, keys| {
                let places = self.places(step);
                for (tile, place) in self.own().steps[step].tiles.iter().zip(&places) {
                    if tile.key_rows.len() < place.rows.len() {
                        place.gradients.iter().try_for_each(|view| comm.clear(view))?;
                    }
                    comm.launch(&self.tile(tile, keys, place).scratch(scratch))?;
                }
                Ok(self.transfers(step, &places))
            })?;
            comm.finish()?;
            self.sums().try_for_each(|sum| comm.launch(&sum))
        }
    }

    /// Returns the bytes of workspace.
    pub fn workspace<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<u64, Error> {
        let mut launches = 1;
        for step in 0..self.steps {
            let keys = self.keys.keys(step);
            for (tile, place) in self.own().steps[step].tiles.iter().zip(&self.places(step)) {
                let plan = comm.attention.plan(&self.tile(tile, &keys, place))?;
                launches = launches.max(plan.scratch_bytes().workspace);
            }
        }
        Ok(self.memory.needed(launches))
    }

    /// Returns the own schedule.
    fn own(&self) -> &Schedule {
        &self.schedules[self.rank]
    }

    /// Returns the number of rows of all gradients that a step sends.
    fn sent_rows(&self, step: usize) -> usize {
        self.places(step).iter().filter(|place| !place.is_home).map(|place| place.rows.len()).sum()
    }

    /// Returns the places of dK and dV of the tiles of a step.
    fn places(&self, step: usize) -> Vec<Place> {
        let Step { keys, tiles } = &self.own().steps[step];
        let mut sent = 0;
        let place = |(index, tile): (usize, &Tile)| {
            let rows = tiles::rows(keys, &tile.keys);
            let of_tile = &keys[tile.keys.clone()];
            if let Some(part) = self.returns.own(step, self.rank, index, of_tile) {
                let start = of_tile.first().map_or(0, |key| key.home.rows.start);
                let home = start..start + rows.len();
                let gradients = [1, 2].map(|of| shard::rows(&self.part(of, part), &home));
                return Place { rows, gradients, is_home: true };
            }
            let first = sent;
            sent += rows.len();
            let gradients = self.sent[step % 2].map(|view| {
                let [batch, _, heads, columns] = view.shape;
                // The rows of a tile are contiguous, also of several batches.
                let skipped = (batch * first * heads * columns) as u64;
                let address = view.address.wrapping_add(skipped * view.element_bytes());
                let elements = view.elements.saturating_sub(skipped);
                TensorView::bshd(address, elements, view.dtype, [batch, rows.len(), heads, columns])
            });
            Place { rows, gradients, is_home: false }
        };
        tiles.iter().enumerate().map(place).collect()
    }

    /// Returns a part of dQ (0), dK (1) or dV (2).
    fn part(&self, of: usize, part: usize) -> TensorView {
        let (view, parts) = (self.gradients[of], self.parts[of]);
        let skipped = part as u64 * view.shape.iter().product::<usize>() as u64;
        let address = parts.address.wrapping_add(skipped * view.element_bytes());
        let elements = parts.elements.saturating_sub(skipped);
        TensorView::bshd(address, elements, view.dtype, view.shape)
    }

    /// Returns the launch of a tile on these keys and values.
    fn tile(&self, tile: &Tile, keys: &[TensorView; 2], place: &Place) -> AttentionBackward<'static> {
        let own = |view: TensorView| shard::rows(&view, &tile.rows);
        let forward = self.shard.request(tile, keys, &self.offsets);
        let seen = tile.key_rows.start - place.rows.start..tile.key_rows.end - place.rows.start;
        let [dk, dv] = place.gradients.map(|view| shard::rows(&view, &seen));
        let mut backward =
            AttentionBackward::new(forward, own(self.d_o), own(self.part(0, tile.slot)), dk, dv);
        backward.d_lse = self.d_lse.map(|view| shard::lse_rows(&view, &tile.rows));
        backward
    }

    /// Returns the transfers of a step's dK and dV: to the ranks of the step's keys, and home.
    fn transfers(&self, step: usize, places: &[Place]) -> Vec<Transfer> {
        let mut all = Vec::new();
        let Step { keys, tiles } = &self.own().steps[step];
        for (tile, place) in tiles.iter().zip(places).filter(|(_, place)| !place.is_home) {
            for key in tile.seen().into_iter().map(|key| &keys[key]) {
                let within = key.rows.start - place.rows.start..key.rows.end - place.rows.start;
                let views = place.gradients.iter().map(|view| shard::rows(view, &within));
                all.extend(views.flat_map(|view| send(key.home.rank, &view)));
            }
        }
        for Return { sender, tile, segment, part } in &self.returns.steps[step] {
            if *sender == self.rank && places[*tile].is_home {
                continue;
            }
            let rows = &self.segments[*segment].rows;
            let views = [1, 2].map(|of| shard::rows(&self.part(of, *part), rows));
            all.extend(views.iter().flat_map(|view| receive(*sender, view)));
        }
        all
    }

    /// Returns the sums of the gradients that have several parts.
    fn sums(&self) -> impl Iterator<Item = Sum> {
        let counts = [&self.own().partials, &self.returns.counts, &self.returns.counts];
        let several = move |of: &usize| counts[*of].iter().any(|count| *count > 1);
        (0..3).filter(several).flat_map(move |of| {
            let apart = self.gradients[of].shape.iter().product();
            Schedule::groups(counts[of]).map(move |(segments, count)| {
                let rows = tiles::rows(&self.segments, &segments);
                let [first, sum] =
                    [self.part(of, 0), self.gradients[of]].map(|view| shard::rows(&view, &rows));
                Sum::new(first, apart, count, sum)
            })
        })
    }
}
