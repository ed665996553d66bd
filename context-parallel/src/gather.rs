//! All-gather: each rank gets the keys and values of all ranks, and then computes.
//!
//! Llama Team, The Llama 3 Herd of Models (2024), section 3.3.2. The keys lie in the order of their
//! positions, so a chunk of causal queries has one launch, whose results need no merge.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory, receive, send};
use crate::shard::{self, Shard};
use crate::transport::{Transfer, Transport};
use crate::travel::Travel;
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::TensorView;

/// In the one step, a rank has all keys and values. Their rows are the positions.
#[derive(Debug)]
pub(crate) struct Gather {
    all: [TensorView; 2],
    transfers: Vec<Transfer>,
}

impl Travel for Gather {
    fn keys_of(chunks: &Chunks, _: usize) -> Vec<Vec<Segment>> {
        vec![chunks.all()]
    }

    fn new(shard: &Shard, chunks: &Chunks, rank: usize, _: usize, memory: &mut Memory) -> Self {
        let own = [shard.k, shard.v];
        let all = own.map(|view| memory.tensor(&view, [view.shape[0], chunks.positions()]));
        let mut transfers = Vec::new();
        for other in 0..chunks.ranks() {
            for (own, all) in own.iter().zip(&all) {
                let sent = chunks.segments(rank).into_iter().map(|of| shard::rows(own, &of.rows));
                transfers.extend(sent.flat_map(|rows| send(other, &rows)));
                let received = chunks.segments(other).into_iter().map(|of| shard::rows(all, &of.positions));
                transfers.extend(received.flat_map(|rows| receive(other, &rows)));
            }
        }
        Gather { all, transfers }
    }

    fn keys(&self, _: usize) -> [TensorView; 2] {
        self.all
    }

    unsafe fn pass<D: Driver, T: Transport<D>>(
        &self,
        comm: &Comm<'_, D, T>,
        mut compute: impl FnMut(usize, &[TensorView; 2]) -> Result<Vec<Transfer>, Error>,
    ) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe {
            comm.start(&self.transfers)?;
            comm.finish()?;
            let gradients = compute(0, &self.all)?;
            comm.start(&gradients)
        }
    }
}
