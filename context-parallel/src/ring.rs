//! Ring attention: keys and values travel from rank to rank while each rank computes on those that it has.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory, receive, send};
use crate::shard::{self, Shard};
use crate::tiles::{self, Schedule, Tile};
use crate::transport::{Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{AttentionRequest, LseView, Merge, Scratch, State, TensorView};

/// Computes attention of a sequence that is spread over ranks. Every rank calls this function with its own
/// tensors, which have the rows of its [`Chunks`]; the mask is that of the whole sequence.
///
/// The request is an [`AttentionRequest::dense`] with an LSE. `k` and `v` are contiguous. Its scratch memory
/// is a workspace of [`ring_workspace`] bytes.
///
/// In each step, a rank computes on the keys that it has, and the transport sends them to the next rank. Each
/// step's O is rounded to the dtype of O. At the end, one launch merges the steps in f32 and in their order,
/// and rounds once: an element has two roundings, however many ranks there are, and repeated calls give
/// identical bits.
///
/// # Errors
/// Returns the errors of the library's launches and of the transport, or [`Error::Unsupported`], which names
/// what only one rank can do.
///
/// # Safety
/// - The requirements of [`Attention::enqueue`](ferroflash::Attention::enqueue) for the request, on `comm`'s
///   stream.
/// - All ranks call this function with equal chunks, masks, heads, head dims and dtypes.
pub unsafe fn ring_attention<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    chunks: &Chunks,
    request: &AttentionRequest<'_>,
) -> Result<(), Error> {
    let (ring, mut memory) = Ring::new(comm, chunks, request)?;
    memory.rest(0)?;
    // SAFETY: tiles, merges and transfers use the request's tensors and disjoint parts of its workspace.
    unsafe {
        ring.keys.pass(comm, chunks, |step, _, keys| {
            let tiles = &ring.schedules[comm.rank()].steps[step];
            tiles.iter().try_for_each(|tile| comm.launch(&ring.tile(tile, keys)))?;
            Ok(Vec::new())
        })?;
        ring.merge(comm)
    }
}

/// Returns the bytes of workspace of a [`ring_attention`]. The request's scratch memory does not matter.
///
/// # Errors
/// Returns the errors of [`ring_attention`] that do not depend on a device.
pub fn ring_workspace<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    chunks: &Chunks,
    request: &AttentionRequest<'_>,
) -> Result<u64, Error> {
    let request = request.scratch(Scratch::Fastest);
    Ok(Ring::new(comm, chunks, &request)?.1.needed(0))
}

/// The passing of keys and values.
#[derive(Debug)]
pub(crate) struct Keys {
    own: [TensorView; 2],
    /// Keys and values of another rank, one pair for each parity of a step.
    buffers: [[TensorView; 2]; 2],
    /// The number of steps after which no rank has work.
    steps: usize,
}

impl Keys {
    pub fn new(shard: &Shard, chunks: &Chunks, steps: usize, memory: &mut Memory) -> Self {
        let own = [shard.k, shard.v];
        let mut buffer = |is_used: bool| {
            let rows = if is_used { chunks.most_rows() } else { 0 };
            own.map(|view| memory.tensor(&view, [view.shape[0], rows]))
        };
        Keys { own, buffers: [buffer(steps > 1), buffer(steps > 2)], steps }
    }

    /// Returns keys and values of a step, of a rank with this number of rows.
    pub fn of(&self, step: usize, rows: usize) -> [TensorView; 2] {
        let Some(received) = step.checked_sub(1) else { return self.own };
        self.buffers[received % 2].map(|view| {
            let [batch, _, heads, columns] = view.shape;
            TensorView::bshd(view.address, view.elements, view.dtype, [batch, rows, heads, columns])
        })
    }

    /// Calls `compute` for each step with the rank to which the keys belong, and with the keys, which the
    /// transport sends on at the same time. The transfers that `compute` returns begin behind its launches,
    /// and run beside those of the next step. The last of them run when this function returns.
    ///
    /// # Safety
    /// - Keys and buffers are memory of the rank's device and live until the transfers have run.
    /// - Other work does not touch the buffers, and does not write the keys.
    /// - The promises of [`Transport::start`] hold for the transfers of `compute`, until the step behind the
    ///   next one.
    pub unsafe fn pass<D: Driver, T: Transport<D>>(
        &self,
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        mut compute: impl FnMut(usize, usize, &[TensorView; 2]) -> Result<Vec<Transfer>, Error>,
    ) -> Result<(), Error> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let from = |step| (rank + ranks - step) % ranks;
        let at = |step| self.of(step, chunks.rows(from(step)));
        let (mut held, mut pending) = (self.own, false);
        for step in 0..self.steps {
            let next = if step + 1 < self.steps { Some(at(step + 1)) } else { None };
            let pairs = next.iter().flat_map(|next| held.iter().zip(next));
            let passed: Vec<Transfer> = pairs
                .flat_map(|(held, next)| send((rank + 1) % ranks, held).chain(receive(from(1), next)))
                .collect();
            // SAFETY: the launches that have read the buffer belong to earlier steps. `start` waits for them.
            // The caller makes the other promises.
            unsafe { comm.start(&passed)? };
            let others = compute(step, from(step), &held)?;
            if pending || !passed.is_empty() {
                comm.finish()?;
            }
            // SAFETY: the caller makes the promises.
            unsafe { comm.start(&others)? };
            pending = !others.is_empty();
            held = next.unwrap_or(held);
        }
        Ok(())
    }
}

/// A forward pass.
#[derive(Debug)]
struct Ring {
    shard: Shard,
    schedules: Vec<Schedule>,
    keys: Keys,
    /// O of the second and all later partial results of a query, and their LSE.
    partials: [u64; 2],
    segments: Vec<Segment>,
    rank: usize,
}

impl Ring {
    fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        request: &AttentionRequest<'_>,
    ) -> Result<(Self, Memory), Error> {
        let rank = comm.rank();
        let shard = Shard::new(request, chunks, [rank, comm.ranks()])?;
        let (schedules, steps) = Schedule::all(chunks, shard.mask)?;
        let mut memory = Memory::new(&request.scratch);
        let keys = Keys::new(&shard, chunks, steps, &mut memory);
        let others = schedules[rank].partials.iter().max().map_or(0, |most| most.saturating_sub(1)) as u64;
        let [batch, rows, heads, _] = shard.o.shape;
        let o = memory.take(others * rows as u64 * Shard::row_bytes(&shard.o));
        let lse = memory.take(others * (batch * rows * heads) as u64 * 4);
        let segments = chunks.segments(rank);
        Ok((Ring { shard, schedules, keys, partials: [o, lse], segments, rank }, memory))
    }

    /// Returns where the partial results of this slot lie: the first are those of the request.
    fn state(&self, slot: usize) -> State {
        let Shard { o, lse, .. } = self.shard;
        let Some(other) = slot.checked_sub(1) else { return State::new(o, lse) };
        let [batch, rows, heads, _] = o.shape;
        let (all, values) = (o.shape.iter().product::<usize>() as u64, (batch * heads * rows) as u64);
        let [first_o, first_lse] = self.partials;
        let o = TensorView::bshd(first_o + other as u64 * all * o.element_bytes(), all, o.dtype, o.shape);
        let lse = first_lse + other as u64 * values * 4;
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
    /// The requirements of [`ring_attention`].
    unsafe fn merge<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<(), Error> {
        let several = Schedule::groups(&self.schedules[self.rank].partials).filter(|(_, count)| *count > 1);
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
