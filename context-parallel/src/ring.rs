//! Ring attention: keys and values travel from rank to rank while each rank computes on those that it has.
//!
//! Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers (2023). With a causal mask, ranks
//! with late queries would have more work than others: Brandon et al., Striped Attention (2023). Chunks in a
//! zigzag give all ranks equal work, as Striped Attention does, but keep positions contiguous.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory, receive, send};
use crate::shard::Shard;
use crate::tiles;
use crate::transport::{Transfer, Transport};
use crate::travel::Travel;
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::TensorView;

/// In step `s`, rank `r` has the keys and values of rank `r - s`.
#[derive(Debug)]
pub(crate) struct Ring {
    own: [TensorView; 2],
    /// Keys and values of other ranks, one pair for each parity of a step: one is read, and one arrives.
    buffers: [[TensorView; 2]; 2],
    /// The number of keys of each step.
    rows: Vec<usize>,
}

impl Travel for Ring {
    fn keys_of(chunks: &Chunks, rank: usize) -> Vec<Vec<Segment>> {
        let ranks = chunks.ranks();
        (0..ranks).map(|step| chunks.segments((rank + ranks - step) % ranks)).collect()
    }

    fn new(shard: &Shard, chunks: &Chunks, rank: usize, steps: usize, memory: &mut Memory) -> Self {
        let own = [shard.k, shard.v];
        let keys = Self::keys_of(chunks, rank);
        let rows: Vec<_> =
            keys.iter().take(steps).map(|keys| tiles::rows(keys, &(0..keys.len())).end).collect();
        let buffers = [1, 2].map(|first| {
            let most = rows.iter().skip(first).step_by(2).max().copied().unwrap_or(0);
            own.map(|view| memory.tensor(&view, [view.shape[0], most]))
        });
        Ring { own, buffers, rows }
    }

    fn keys(&self, step: usize) -> [TensorView; 2] {
        let Some(received) = step.checked_sub(1) else { return self.own };
        self.buffers[received % 2].map(|view| {
            let [batch, _, heads, columns] = view.shape;
            let shape = [batch, self.rows[step], heads, columns];
            TensorView::bshd(view.address, view.elements, view.dtype, shape)
        })
    }

    unsafe fn pass<D: Driver, T: Transport<D>>(
        &self,
        comm: &Comm<'_, D, T>,
        mut compute: impl FnMut(usize, &[TensorView; 2]) -> Result<Vec<Transfer>, Error>,
    ) -> Result<(), Error> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let [next, last] = [(rank + 1) % ranks, (rank + ranks - 1) % ranks];
        let mut is_pending = false;
        for step in 0..self.rows.len() {
            let held = self.keys(step);
            let passed: Vec<Transfer> = match step + 1 < self.rows.len() {
                true => held
                    .iter()
                    .zip(&self.keys(step + 1))
                    .flat_map(|(held, arriving)| send(next, held).chain(receive(last, arriving)))
                    .collect(),
                false => Vec::new(),
            };
            // SAFETY: the launches that have read the buffer belong to earlier steps. `start` waits for them.
            // The caller makes the other promises.
            unsafe { comm.start(&passed)? };
            let gradients = compute(step, &held)?;
            if is_pending || !passed.is_empty() {
                comm.finish()?;
            }
            // SAFETY: the caller makes the promises.
            unsafe { comm.start(&gradients)? };
            is_pending = !gradients.is_empty();
        }
        Ok(())
    }
}
