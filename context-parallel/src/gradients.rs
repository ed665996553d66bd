//! The backward pass of ring attention: keys and values travel, and their gradients return.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory, receive, send};
use crate::ring::Keys;
use crate::shard::{self, Shard, contiguous};
use crate::tiles::{self, Schedule, Tile};
use crate::transport::{Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Scratch, Sum, TensorView};
use std::ops::Range;

/// Computes the gradients of a [`ring_attention`](crate::ring_attention). Every rank calls this function with
/// its own tensors. `backward.forward` is the forward's request, whose O and LSE count the keys of all ranks.
/// The gradients are contiguous. The scratch memory is a workspace of [`ring_backward_workspace`] bytes.
///
/// In each step, a rank computes the gradients of the keys that it has, and sends them to the rank to which
/// the keys belong, beside the next step. Each step's dQ, dK and dV are rounded to the gradients' dtype. At
/// the end, one launch per gradient adds the steps in f32 and in a fixed order, and rounds once: an element
/// has two roundings, however many ranks there are, and repeated calls give identical bits.
///
/// # Errors
/// Returns the errors of the library's launches and of the transport, or [`Error::Unsupported`], which names
/// what only one rank can do.
///
/// # Safety
/// The requirements of [`ring_attention`](crate::ring_attention), for the backward pass.
pub unsafe fn ring_backward<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    chunks: &Chunks,
    backward: &AttentionBackward<'_>,
) -> Result<(), Error> {
    let (ring, mut memory) = Ring::new(comm, chunks, backward)?;
    let [address, bytes] = memory.rest(1)?;
    let scratch = Scratch::workspace(address, bytes);
    // SAFETY: tiles, sums and transfers use the request's tensors and disjoint parts of its workspace.
    unsafe {
        ring.keys.pass(comm, chunks, |step, from, keys| {
            let places = ring.places(step, from);
            for (tile, place) in ring.tiles(step).iter().zip(&places) {
                if tile.key_rows.len() < place.rows.len() {
                    place.gradients.iter().try_for_each(|view| comm.clear(view))?;
                }
                comm.launch(&ring.tile(tile, keys, place).scratch(scratch))?;
            }
            Ok(ring.transfers(step, from, &places))
        })?;
        comm.finish()?;
        ring.sums().try_for_each(|sum| comm.launch(&sum))
    }
}

/// Returns the bytes of workspace of a [`ring_backward`]. The request's scratch memory does not matter.
///
/// # Errors
/// Returns the errors of [`ring_backward`] that do not depend on transfers.
pub fn ring_backward_workspace<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    chunks: &Chunks,
    backward: &AttentionBackward<'_>,
) -> Result<u64, Error> {
    let (ring, memory) = Ring::new(comm, chunks, &backward.scratch(Scratch::Fastest))?;
    let mut launches = 1;
    for step in 0..comm.ranks() {
        let from = (comm.rank() + comm.ranks() - step) % comm.ranks();
        let keys = ring.keys.of(step, chunks.rows(from));
        for (tile, place) in ring.tiles(step).iter().zip(&ring.places(step, from)) {
            let plan = comm.attention.plan(&ring.tile(tile, &keys, place))?;
            launches = launches.max(plan.scratch_bytes().workspace);
        }
    }
    Ok(memory.needed(launches))
}

/// A backward pass.
#[derive(Debug)]
struct Ring {
    shard: Shard,
    d_o: TensorView,
    d_lse: Option<LseView>,
    /// dQ, dK and dV.
    gradients: [TensorView; 3],
    schedules: Vec<Schedule>,
    segments: Vec<Vec<Segment>>,
    keys: Keys,
    returns: Returns,
    /// The parts of dQ, dK and dV: [`slot`] has the places.
    parts: [TensorView; 3],
    /// Gradients of keys of other ranks, one pair for each parity of a step.
    sent: [[TensorView; 2]; 2],
    rank: usize,
}

/// The parts of dK and dV that come home to a rank.
#[derive(Debug)]
struct Returns {
    /// For each step, each tile of the rank that has the keys in this step, and each key segment of the tile:
    /// the index among all parts of the segment.
    slots: Vec<Vec<Vec<usize>>>,
    /// The number of parts of each key segment.
    counts: Vec<usize>,
}

impl Returns {
    fn new(schedules: &[Schedule], home: usize, segments: usize) -> Self {
        let mut counts = vec![0; segments];
        let mut of_segment = |segment: usize| {
            counts[segment] += 1;
            counts[segment] - 1
        };
        let mut of_tile = |tile: &Tile| tile.keys.clone().map(&mut of_segment).collect();
        let ranks = schedules.len();
        let step =
            |step: usize| schedules[(home + step) % ranks].steps[step].iter().map(&mut of_tile).collect();
        let slots = (0..ranks).map(step).collect();
        Returns { slots, counts }
    }

    /// Returns the slot in which a tile of the rank's own keys writes its gradients itself, if it has one.
    fn own(&self, tile: usize) -> Option<usize> {
        let slots = &self.slots[0][tile];
        slots.first().copied().filter(|first| slots.iter().all(|slot| slot == first))
    }
}

/// Where a tile writes dK and dV.
#[derive(Debug)]
struct Place {
    /// The rows of the tile's key segments.
    rows: Range<usize>,
    /// These rows of dK and dV.
    gradients: [TensorView; 2],
    /// Whether the place is a slot of the own rank, so that nothing is sent.
    is_home: bool,
}

impl Ring {
    fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        backward: &AttentionBackward<'_>,
    ) -> Result<(Self, Memory), Error> {
        let rank = comm.rank();
        let shard = Shard::new(&backward.forward, chunks, [rank, comm.ranks()])?;
        let AttentionBackward { d_o, d_lse, dq, dk, dv, scratch, .. } = *backward;
        let gradients = [dq, dk, dv];
        for (name, view) in ["dq.strides", "dk.strides", "dv.strides"].into_iter().zip(&gradients) {
            contiguous(name, view)?;
        }
        let shapes = [("dq.shape", dq, shard.q), ("dk.shape", dk, shard.k), ("dv.shape", dv, shard.v)];
        for (name, view, of) in shapes.into_iter().chain([("d_o.shape", d_o, shard.o)]) {
            if view.shape != of.shape {
                let expected = format_args!("it must be that of its tensor, {:?}", of.shape);
                return Err(Error::invalid(name, format!("{:?}", view.shape), expected));
            }
        }
        let (schedules, steps) = Schedule::all(chunks, shard.mask)?;
        let segments: Vec<_> = (0..comm.ranks()).map(|rank| chunks.segments(rank)).collect();
        let returns = Returns::new(&schedules, rank, segments[rank].len());
        let mut memory = Memory::new(&scratch);
        let keys = Keys::new(&shard, chunks, steps, &mut memory);
        // A gradient with one part has no slots: its launch writes the gradient.
        let counts = [&schedules[rank].partials, &returns.counts, &returns.counts];
        let most = counts.map(|counts| counts.iter().copied().max().filter(|most| *most > 1).unwrap_or(0));
        let parts = [0, 1, 2].map(|of| {
            let [batch, rows, ..] = gradients[of].shape;
            match most[of] {
                0 => gradients[of],
                most => memory.tensor(&gradients[of], [most * batch, rows]),
            }
        });
        let mut ring = Ring {
            shard,
            d_o,
            d_lse,
            gradients,
            schedules,
            segments,
            keys,
            returns,
            parts,
            sent: [[dk, dv]; 2],
            rank,
        };
        ring.sent = [0, 1].map(|parity| {
            let steps = (0..comm.ranks()).filter(|step| step % 2 == parity);
            let rows = steps.map(|step| ring.sent_rows(step)).max().unwrap_or(0);
            [dk, dv].map(|view| memory.tensor(&view, [view.shape[0], rows]))
        });
        Ok((ring, memory))
    }

    /// Returns the own tiles of a step.
    fn tiles(&self, step: usize) -> &[Tile] {
        &self.schedules[self.rank].steps[step]
    }

    /// Returns the number of rows of all gradients that a step sends.
    fn sent_rows(&self, step: usize) -> usize {
        let ranks = self.schedules.len();
        let places = self.places(step, (self.rank + ranks - step) % ranks);
        places.iter().filter(|place| !place.is_home).map(|place| place.rows.len()).sum()
    }

    /// Returns the places of dK and dV of the tiles of a step on the keys of a rank.
    fn places(&self, step: usize, from: usize) -> Vec<Place> {
        let mut sent = 0;
        let place = |(index, tile): (usize, &Tile)| {
            let rows = tiles::rows(&self.segments[from], &tile.keys);
            match self.returns.own(index).filter(|_| step == 0) {
                Some(slot) => {
                    let gradients = [1, 2].map(|of| shard::rows(&self.slot(of, slot), &rows));
                    Place { rows, gradients, is_home: true }
                }
                None => {
                    let first = sent;
                    sent += rows.len();
                    let gradients = self.sent[step % 2].map(|view| {
                        let [batch, _, heads, columns] = view.shape;
                        // The rows of a tile are contiguous, also of several batches.
                        let skipped = (batch * first * heads * columns) as u64;
                        let address = view.address + skipped * view.element_bytes();
                        let elements = view.elements.saturating_sub(skipped);
                        TensorView::bshd(address, elements, view.dtype, [batch, rows.len(), heads, columns])
                    });
                    Place { rows, gradients, is_home: false }
                }
            }
        };
        self.tiles(step).iter().enumerate().map(place).collect()
    }

    /// Returns a part of dQ (0), dK (1) or dV (2).
    fn slot(&self, of: usize, slot: usize) -> TensorView {
        let (view, parts) = (self.gradients[of], self.parts[of]);
        let skipped = slot as u64 * view.shape.iter().product::<usize>() as u64;
        let address = parts.address + skipped * view.element_bytes();
        let elements = parts.elements.saturating_sub(skipped);
        TensorView::bshd(address, elements, view.dtype, view.shape)
    }

    /// Returns the launch of a tile on these keys and values.
    fn tile(&self, tile: &Tile, keys: &[TensorView; 2], place: &Place) -> AttentionBackward<'static> {
        let Shard { q, o, lse, scores, .. } = self.shard;
        let [k, v] = keys.map(|view| shard::rows(&view, &tile.key_rows));
        let own = |view: TensorView| shard::rows(&view, &tile.rows);
        let forward = AttentionRequest::dense(own(q), k, v, own(o))
            .mask(tile.mask)
            .alignment(tile.alignment)
            .scores(scores)
            .lse(shard::lse_rows(&lse, &tile.rows));
        let seen = tile.key_rows.start - place.rows.start..tile.key_rows.end - place.rows.start;
        let [dk, dv] = place.gradients.map(|view| shard::rows(&view, &seen));
        let mut backward =
            AttentionBackward::new(forward, own(self.d_o), own(self.slot(0, tile.slot)), dk, dv);
        backward.d_lse = self.d_lse.map(|view| shard::lse_rows(&view, &tile.rows));
        backward
    }

    /// Returns the transfers of a step's dK and dV: those of the keys of rank `to`, and those that come home.
    fn transfers(&self, step: usize, to: usize, places: &[Place]) -> Vec<Transfer> {
        let mut all = Vec::new();
        let of = |segments: &[Segment], index: usize| segments[index].rows.clone();
        for (tile, place) in self.tiles(step).iter().zip(places).filter(|(_, place)| !place.is_home) {
            for index in tile.keys.clone() {
                let rows = of(&self.segments[to], index);
                let within = rows.start - place.rows.start..rows.end - place.rows.start;
                all.extend(place.gradients.iter().flat_map(|view| send(to, &shard::rows(view, &within))));
            }
        }
        let sender = (self.rank + step) % self.schedules.len();
        for (index, tile) in self.schedules[sender].steps[step].iter().enumerate() {
            if step == 0 && self.returns.own(index).is_some() {
                continue;
            }
            for (segment, slot) in tile.keys.clone().zip(&self.returns.slots[step][index]) {
                let rows = of(&self.segments[self.rank], segment);
                let views = [1, 2].map(|of| shard::rows(&self.slot(of, *slot), &rows));
                all.extend(views.iter().flat_map(|view| receive(sender, view)));
            }
        }
        all
    }

    /// Returns the sums of the gradients that have several parts.
    fn sums(&self) -> impl Iterator<Item = Sum> {
        let counts = [&self.schedules[self.rank].partials, &self.returns.counts, &self.returns.counts];
        let several = move |of: &usize| counts[*of].iter().any(|count| *count > 1);
        (0..3).filter(several).flat_map(move |of| {
            let apart = self.gradients[of].shape.iter().product();
            Schedule::groups(counts[of]).map(move |(segments, count)| {
                let rows = tiles::rows(&self.segments[self.rank], &segments);
                let [first, sum] =
                    [self.slot(of, 0), self.gradients[of]].map(|view| shard::rows(&view, &rows));
                Sum::new(first, apart, count, sum)
            })
        })
    }
}
