//! Forward and backward passes of one sequence.
use crate::rank::{HEAD_DIM, HEADS, Rank, Tensor, compare};
use crate::recorder::{Recorder, sent};
use context_parallel::{Chunks, Comm, Form, Transport};
use ferroflash::Error;
use ferroflash::driver::{Harness, RawBuffer};
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask};
use std::ops::Range;

/// The tensors of a forward and a backward pass.
struct Tensors {
    /// Q, K, V, O, and the gradients of O, Q, K and V.
    all: [Tensor; 8],
    lse: LseView,
    _lse: RawBuffer,
}

/// Which tensors have the shape of K.
const OF_KEYS: [bool; 8] = [false, true, true, false, false, false, true, true];

impl Tensors {
    fn new(rank: &Rank<'_>, positions: &[Range<usize>]) -> Result<Self, Error> {
        let mut all = Vec::new();
        for (seed, of_keys) in OF_KEYS.into_iter().enumerate() {
            all.push(rank.tensor(seed, HEADS[usize::from(of_keys)], positions)?);
        }
        let Ok(all) = <[Tensor; 8]>::try_from(all) else { unreachable!("eight tensors") };
        let rows = all[0].view.shape[1];
        let memory = rank.driver().allocate((HEADS[0] * rows * 4).max(4))?;
        let address = rank.driver().address(&memory);
        let lse = LseView::contiguous(address, (HEADS[0] * rows) as u64, [1, HEADS[0], rows]);
        Ok(Tensors { all, lse, _lse: memory })
    }

    fn forward(&self) -> AttentionRequest<'static> {
        let [q, k, v, o, ..] = self.all.each_ref().map(|tensor| tensor.view);
        AttentionRequest::dense(q, k, v, o).mask(Mask::Causal).lse(self.lse)
    }

    fn backward(&self) -> AttentionBackward<'static> {
        let [_, _, _, _, d_o, dq, dk, dv] = self.all.each_ref().map(|tensor| tensor.view);
        AttentionBackward::new(self.forward(), d_o, dq, dk, dv)
    }
}

/// Compares the ranks' results with those of the whole sequence on the own GPU, and with their own
/// repetition.
pub fn check(rank: &Rank<'_>, form: Form, positions: usize) -> Result<(), Error> {
    let chunks = Chunks::zigzag(positions, rank.nccl.ranks())?;
    let (own, whole) = (chunks.of(rank.nccl.rank()), std::slice::from_ref(&(0..positions)).to_vec());
    let (ranks, one) = (Tensors::new(rank, own)?, Tensors::new(rank, &whole)?);
    let comm = Comm::new(rank.attention, rank.nccl, rank.stream);
    let bytes = form.attention_workspace(&comm, &chunks, &ranks.forward())?;
    let (_forward, scratch) = rank.workspace(bytes)?;
    let bytes = form.backward_workspace(&comm, &chunks, &ranks.backward())?;
    let (_backward, of_backward) = rank.workspace(bytes)?;
    let outputs = [("o", 3), ("dq", 5), ("dk", 6), ("dv", 7)];
    let run = || {
        // SAFETY: the tensors live until the stream has been waited for, and nothing else uses them.
        unsafe {
            form.attention(&comm, &chunks, &ranks.forward().scratch(scratch))?;
            form.backward(&comm, &chunks, &ranks.backward().scratch(of_backward))?;
        }
        rank.wait()?;
        outputs.iter().map(|(_, index)| rank.read(&ranks.all[*index])).collect::<Result<Vec<_>, Error>>()
    };
    let (found, again) = (run()?, run()?);
    let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    if bits(&found) != bits(&again) {
        return Err(Error::driver("check", None, format!("{form:?}: repeated calls differ")));
    }
    let bytes = rank.attention.plan(&one.backward())?.scratch_bytes().workspace;
    let (_one, of_one) = rank.workspace(bytes)?;
    rank.alone(&one.forward())?;
    rank.alone(&one.backward().scratch(of_one))?;
    rank.wait()?;
    let mut differences = Vec::new();
    for ((name, index), found) in outputs.into_iter().zip(&found) {
        let (all, width) = (rank.read(&one.all[index])?, HEADS[usize::from(OF_KEYS[index])] * HEAD_DIM);
        let rows = own.iter().cloned().flatten();
        let expected: Vec<f32> = rows.flat_map(|row| &all[row * width..(row + 1) * width]).copied().collect();
        let [worst, largest] = compare(&format!("{form:?}: {name}"), found, &expected)?;
        differences.push(format!("\"{name}\": [{worst:e}, {largest:e}]"));
    }
    let place = rank.nccl.rank();
    println!(
        "{{\"check\": \"{form:?}\", \"positions\": {positions}, \"rank\": {place}, {}}}",
        differences.join(", ")
    );
    Ok(())
}

/// Measures all forms on a sequence, beside the whole sequence on one GPU.
pub fn measure(rank: &Rank<'_>, forms: &[Form], positions: usize, rounds: usize) -> Result<(), Error> {
    // All ranks must run as many rounds, so time cannot decide. One round of 262144 positions takes a second.
    let rounds = ((1 << 18) / positions.max(1)).pow(2).clamp(1, rounds);
    let one = {
        let of = Tensors::new(rank, std::slice::from_ref(&(0..positions)))?;
        let bytes = rank.attention.plan(&of.backward())?.scratch_bytes().workspace;
        let (_memory, scratch) = rank.workspace(bytes)?;
        let (forward, backward) = (of.forward(), of.backward().scratch(scratch));
        let alone = rank.time(rounds, &mut || rank.alone(&forward))?;
        let both = rank.time(rounds, &mut || rank.alone(&forward).and_then(|()| rank.alone(&backward)))?;
        [alone, both]
    };
    let ranks = rank.nccl.ranks();
    let chunks = Chunks::zigzag(positions, ranks)?;
    let of = Tensors::new(rank, chunks.of(rank.nccl.rank()))?;
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
                // SAFETY: as in `check`.
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
