//! Forward and backward passes of one sequence.
use crate::rank::{HEADS, Rank, Tensor};
use crate::recorder::{Recorder, sent};
use context_parallel::{Chunks, Comm, Form, Transport};
use ferroflash::driver::{Harness, RawBuffer};
use ferroflash::request::{
    AttentionBackward, AttentionRequest, Index, KeysValues, LseView, Mask, Queries, TensorView, VarlenKeys,
    VarlenQueries,
};
use ferroflash::{DType, Error};
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
        let mut lse_memory = rank.driver().allocate((heads * rows * 4).max(4))?;
        rank.driver().fill(&mut lse_memory, 0)?;
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

/// Measures all forms on sequences of equal lengths, beside all of them on one GPU.
pub fn measure(
    rank: &Rank<'_>,
    forms: &[Form],
    [positions, sequences]: [usize; 2],
    rounds: usize,
) -> Result<(), Error> {
    // All ranks must run as many rounds, so time cannot decide. One round of 262144 positions takes a second.
    let rounds = ((1 << 18) / positions.max(1)).pow(2).clamp(2, rounds.max(2));
    let lengths: Vec<usize> = (0..sequences)
        .map(|index| positions * (index + 1) / sequences - positions * index / sequences)
        .collect();
    let one = alone(rank, positions, &lengths, rounds)?;
    if sequences == 1 {
        let state = state(rank, positions, rounds)?;
        println!(
            "{{\"state\": {positions}, \"rank\": {}, \"ms\": {state:.3}, \"one_gpu_ms\": {:.3}}}",
            rank.nccl.rank(),
            one[0]
        );
    }
    let ranks = rank.nccl.ranks();
    let chunks = Chunks::packed(&lengths, ranks)?;
    let of = Tensors::new(rank, HEADS, Mask::Causal, chunks.of(rank.nccl.rank()))?;
    for form in forms {
        let [nccl, silent] = [true, false].map(|sends| Recorder::new(rank.nccl, sends));
        let comm = Comm::new(rank.attention, &nccl, rank.stream);
        let bytes = form.attention_workspace(&comm, &chunks, &of.forward())?;
        let (_forward, scratch) = rank.workspace(bytes)?;
        let bytes = form.backward_workspace(&comm, &chunks, &of.backward())?;
        let (_backward, of_backward) = rank.workspace(bytes)?;
        let (forward, backward) = (of.forward().scratch(scratch), of.backward().scratch(of_backward));
        for (name, one, is_both) in [("forward", one[0], false), ("forward and backward", one[1], true)] {
            let time = |transport: &Recorder<'_>| {
                let comm = Comm::new(rank.attention, transport, rank.stream);
                rank.time(rounds, &mut || {
                    // What one round sends is what the last round sends.
                    transport.take();
                    // SAFETY: the tensors live until the stream has been waited for, and nothing else uses
                    // them.
                    unsafe {
                        form.attention(&comm, &chunks, &forward)?;
                        if is_both { form.backward(&comm, &chunks, &backward) } else { Ok(()) }
                    }
                })
            };
            let (ms, computing) = (time(&nccl)?, time(&silent)?);
            let transfers = nccl.take();
            let (link, bytes) = (rank.link(rounds, &transfers)?, sent(&transfers, rank.nccl.rank()));
            println!(
                "{{\"form\": \"{form:?}\", \"pass\": \"{name}\", \"positions\": {positions}, \
                 \"sequences\": {sequences}, \"rank\": {}, \"ranks\": {ranks}, \"rounds\": {rounds}, \
                 \"ms\": {ms:.3}, \"one_gpu_ms\": {one:.3}, \"share_of_ideal\": {:.4}, \
                 \"launches_ms\": {computing:.3}, \"bytes_sent\": {bytes}, \"link_ms\": {link:.3}, \
                 \"hidden_link\": {:.3}}}",
                rank.nccl.rank(),
                one / ranks as f64 / ms,
                1.0 - (ms - computing) / link,
            );
        }
    }
    Ok(())
}

/// Returns the times of the forward pass and of both passes on the own GPU.
fn alone(rank: &Rank<'_>, positions: usize, lengths: &[usize], rounds: usize) -> Result<[f64; 2], Error> {
    let of = Tensors::new(rank, HEADS, Mask::Causal, std::slice::from_ref(&(0..positions)))?;
    let mut end = 0;
    let ends = lengths.iter().map(|length| {
        end += length;
        end as i32
    });
    let starts: Vec<u8> = std::iter::once(0).chain(ends).flat_map(i32::to_le_bytes).collect();
    let mut memory = rank.driver().allocate(starts.len())?;
    rank.driver().upload(&mut memory, &starts)?;
    let starts = Index::new(rank.driver().address(&memory), starts.len() as u64 / 4);
    let with = |mut request: AttentionRequest<'static>| {
        let most = lengths.iter().copied().max().unwrap_or(0);
        if let (KeysValues::Tensors { k, v }, 2..) = (request.kv, lengths.len()) {
            request.queries = Queries::Varlen(VarlenQueries::new(lengths.len(), starts, most));
            request.kv = KeysValues::Varlen { k, v, keys: VarlenKeys::new(starts, most) };
        }
        request
    };
    let (forward, mut backward) = (with(of.forward()), of.backward());
    backward.forward = with(backward.forward);
    let bytes = rank.attention.plan(&backward)?.scratch_bytes().workspace;
    let (_memory, scratch) = rank.workspace(bytes)?;
    let backward = backward.scratch(scratch);
    let one = rank.time(rounds, &mut || rank.alone(&forward))?;
    let both = rank.time(rounds, &mut || rank.alone(&forward).and_then(|()| rank.alone(&backward)))?;
    Ok([one, both])
}

/// Returns the time of a forward pass on the own GPU that leaves a state in f32, as a step of a ring does.
fn state(rank: &Rank<'_>, positions: usize, rounds: usize) -> Result<f64, Error> {
    let of = Tensors::new(rank, HEADS, Mask::Causal, std::slice::from_ref(&(0..positions)))?;
    let mut request = of.forward();
    let elements = request.o.elements;
    let memory = rank.driver().allocate(elements as usize * 4)?;
    request.o = TensorView::bhsd(rank.driver().address(&memory), elements, DType::F32, request.o.shape);
    rank.time(rounds, &mut || rank.alone(&request))
}
