//! Forward and backward passes of one sequence.
use crate::rank::{HEADS, Rank, Tensor};
use crate::recorder::{Recorder, sent};
use context_parallel::{Chunks, Comm, Form, Transport};
use ferroflash::Error;
use ferroflash::driver::{Harness, RawBuffer};
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask};
use std::ops::Range;

/// The tensors of a forward and a backward pass.
pub struct Tensors {
    /// Q, K, V, O, and the gradients of O, Q, K and V.
    pub all: [Tensor; 8],
    pub lse: LseView,
    pub lse_memory: RawBuffer,
    mask: Mask,
}

/// Which tensors have the shape of K.
pub const OF_KEYS: [bool; 8] = [false, true, true, false, false, false, true, true];

impl Tensors {
    /// Allocates the rows of some positions, with `heads` query heads and key heads.
    pub fn new(
        rank: &Rank<'_>,
        heads: [usize; 2],
        mask: Mask,
        positions: &[Range<usize>],
    ) -> Result<Self, Error> {
        let mut all = Vec::new();
        for (seed, of_keys) in OF_KEYS.into_iter().enumerate() {
            all.push(rank.tensor(seed, heads[usize::from(of_keys)], positions)?);
        }
        let Ok(all) = <[Tensor; 8]>::try_from(all) else { unreachable!("eight tensors") };
        let (rows, heads) = (all[0].view.shape[1], heads[0]);
        let lse_memory = rank.driver().allocate((heads * rows * 4).max(4))?;
        let address = rank.driver().address(&lse_memory);
        let lse = LseView::contiguous(address, (heads * rows) as u64, [1, heads, rows]);
        Ok(Tensors { all, lse, lse_memory, mask })
    }

    pub fn forward(&self) -> AttentionRequest<'static> {
        let [q, k, v, o, ..] = self.all.each_ref().map(|tensor| tensor.view);
        AttentionRequest::dense(q, k, v, o).mask(self.mask).lse(self.lse)
    }

    pub fn backward(&self) -> AttentionBackward<'static> {
        let [_, _, _, _, d_o, dq, dk, dv] = self.all.each_ref().map(|tensor| tensor.view);
        AttentionBackward::new(self.forward(), d_o, dq, dk, dv)
    }
}

/// Measures all forms on a sequence, beside the whole sequence on one GPU.
pub fn measure(rank: &Rank<'_>, forms: &[Form], positions: usize, rounds: usize) -> Result<(), Error> {
    // All ranks must run as many rounds, so time cannot decide. One round of 262144 positions takes a second.
    let rounds = ((1 << 18) / positions.max(1)).pow(2).clamp(1, rounds);
    let one = {
        let of = Tensors::new(rank, HEADS, Mask::Causal, std::slice::from_ref(&(0..positions)))?;
        let bytes = rank.attention.plan(&of.backward())?.scratch_bytes().workspace;
        let (_memory, scratch) = rank.workspace(bytes)?;
        let (forward, backward) = (of.forward(), of.backward().scratch(scratch));
        let alone = rank.time(rounds, &mut || rank.alone(&forward))?;
        let both = rank.time(rounds, &mut || rank.alone(&forward).and_then(|()| rank.alone(&backward)))?;
        [alone, both]
    };
    let ranks = rank.nccl.ranks();
    let chunks = Chunks::zigzag(positions, ranks)?;
    let of = Tensors::new(rank, HEADS, Mask::Causal, chunks.of(rank.nccl.rank()))?;
    for form in forms {
        let recorder = Recorder::new(rank.nccl);
        let comm = Comm::new(rank.attention, &recorder, rank.stream);
        let bytes = form.attention_workspace(&comm, &chunks, &of.forward())?;
        let (_forward, scratch) = rank.workspace(bytes)?;
        let bytes = form.backward_workspace(&comm, &chunks, &of.backward())?;
        let (_backward, of_backward) = rank.workspace(bytes)?;
        let (forward, backward) = (of.forward().scratch(scratch), of.backward().scratch(of_backward));
        for (name, one, is_both) in [("forward", one[0], false), ("forward and backward", one[1], true)] {
            let mut work = || {
                // What one round sends is what the last round sends.
                recorder.take();
                // SAFETY: the tensors live until the stream has been waited for, and nothing else uses them.
                unsafe {
                    form.attention(&comm, &chunks, &forward)?;
                    if is_both { form.backward(&comm, &chunks, &backward) } else { Ok(()) }
                }
            };
            let ms = rank.time(rounds, &mut work)?;
            let transfers = recorder.take();
            let (link, bytes) = (rank.link(rounds, &transfers)?, sent(&transfers, rank.nccl.rank()));
            let ideal = one / ranks as f64;
            println!(
                "{{\"form\": \"{form:?}\", \"pass\": \"{name}\", \"positions\": {positions}, \"rank\": {}, \
                 \"ranks\": {ranks}, \"ms\": {ms:.3}, \"one_gpu_ms\": {one:.3}, \"share_of_ideal\": {:.4}, \
                 \"bytes_sent\": {bytes}, \"link_ms\": {link:.3}, \"hidden_link\": {:.3}}}",
                rank.nccl.rank(),
                ideal / ms,
                1.0 - (ms - ideal) / link,
            );
        }
    }
    Ok(())
}
