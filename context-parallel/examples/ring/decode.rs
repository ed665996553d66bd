//! Decode of one sequence whose KV cache is spread over the ranks.
use crate::rank::{HEAD_DIM, HEADS, Rank, Tensor, compare};
use context_parallel::{Comm, Transport, decode_attention, decode_workspace};
use ferroflash::driver::{Harness, RawBuffer};
use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages, LseView, Region, Scratch, TensorView};
use ferroflash::{DType, Error};
use std::ops::Range;

/// Keys of a page of the KV cache.
const PAGE: usize = 64;
/// Steps of a round: one step is short.
const STEPS: usize = 20;

/// A decode step of the keys of some positions. `memory` keeps its buffers.
struct Step {
    request: AttentionRequest<'static>,
    messages: Region,
    o: Tensor,
    _memory: Vec<RawBuffer>,
}

impl Step {
    fn new(rank: &Rank<'_>, positions: Range<usize>) -> Result<Self, Error> {
        let driver = rank.driver();
        let (query, pages) = (std::slice::from_ref(&(0..1)), positions.len().div_ceil(PAGE));
        let (q, o) = (rank.tensor(0, HEADS[0], query)?, rank.tensor(1, HEADS[0], query)?);
        let rows = std::slice::from_ref(&(positions.start..positions.start + pages * PAGE)).to_vec();
        let [k, v] = [2, 3].map(|seed| rank.tensor(seed, HEADS[1], &rows));
        let (k, v) = (k?, v?);
        let pool = |of: &Tensor| {
            let shape = [pages, PAGE, HEADS[1], HEAD_DIM];
            TensorView::bshd(of.view.address, of.view.elements, DType::Bf16, shape)
        };
        let mut memory = Vec::new();
        let mut integers = |values: &mut dyn Iterator<Item = i32>| {
            let bytes: Vec<u8> = values.flat_map(i32::to_le_bytes).collect();
            let mut buffer = driver.allocate(bytes.len().max(4))?;
            driver.upload(&mut buffer, &bytes)?;
            let index = Index::new(driver.address(&buffer), bytes.len() as u64 / 4);
            memory.push(buffer);
            Ok::<_, Error>(index)
        };
        let table = integers(&mut (0..pages as i32))?;
        let lengths = integers(&mut std::iter::once(positions.len() as i32))?;
        let cache = KvCache::paged(KvPages::new(pool(&k), pool(&v)), table, pages, lengths);
        let mut allocate = |bytes: u64| {
            let mut buffer = driver.allocate(bytes.max(16) as usize)?;
            driver.fill(&mut buffer, 0)?;
            let address = driver.address(&buffer);
            memory.push(buffer);
            Ok::<u64, Error>(address)
        };
        let lse = LseView::contiguous(allocate(HEADS[0] as u64 * 4)?, HEADS[0] as u64, [1, HEADS[0], 1]);
        let request = AttentionRequest::cached(q.view, cache, o.view).lse(lse).scratch(Scratch::Fastest);
        let needed = rank.attention.plan(&request)?.scratch_bytes();
        let counters = allocate(needed.counters)?;
        let request = request.scratch(needed.at(allocate(needed.workspace)?, Some(counters)));
        let bytes = decode_workspace(&Comm::new(rank.attention, rank.nccl, rank.stream), &request)?;
        let messages = Region { address: allocate(bytes)?, bytes };
        memory.extend([q.buffer, k.buffer, v.buffer]);
        Ok(Step { request, messages, o, _memory: memory })
    }

    fn shared(&self, rank: &Rank<'_>) -> Result<(), Error> {
        let comm = Comm::new(rank.attention, rank.nccl, rank.stream);
        // SAFETY: the buffers live until the stream has been waited for, and nothing else uses them.
        unsafe { decode_attention(&comm, &self.request, self.messages) }
    }
}

/// Returns the positions of a rank.
fn own(rank: &Rank<'_>, keys: usize) -> Range<usize> {
    let at = |rank_of: usize| keys * rank_of / rank.nccl.ranks();
    at(rank.nccl.rank())..at(rank.nccl.rank() + 1)
}

/// Compares O with that of all keys on the own GPU.
pub fn check(rank: &Rank<'_>, keys: usize) -> Result<(), Error> {
    let (shared, one) = (Step::new(rank, own(rank, keys))?, Step::new(rank, 0..keys)?);
    shared.shared(rank)?;
    rank.alone(&one.request)?;
    rank.wait()?;
    let worst = compare("decode: o", &rank.read(&shared.o)?, &rank.read(&one.o)?)?;
    let place = rank.nccl.rank();
    println!("{{\"check\": \"decode\", \"keys\": {keys}, \"rank\": {place}, \"o\": {worst:.5}}}");
    Ok(())
}

/// Measures decode of one sequence, beside all keys on one GPU.
pub fn measure(rank: &Rank<'_>, keys: usize, rounds: usize) -> Result<(), Error> {
    let shared = {
        let step = Step::new(rank, own(rank, keys))?;
        rank.time(rounds, &mut || (0..STEPS).try_for_each(|_| step.shared(rank)))? / STEPS as f64
    };
    let one = {
        let step = Step::new(rank, 0..keys)?;
        rank.time(rounds, &mut || (0..STEPS).try_for_each(|_| rank.alone(&step.request)))? / STEPS as f64
    };
    let (place, ranks) = (rank.nccl.rank(), rank.nccl.ranks());
    println!(
        "{{\"decode\": {keys}, \"rank\": {place}, \"ranks\": {ranks}, \"ms\": {shared:.4}, \
         \"one_gpu_ms\": {one:.4}, \"speedup\": {:.3}}}",
        one / shared
    );
    Ok(())
}
