//! Measures ring attention and decode on the GPUs of one machine, one thread per rank, and prints JSON lines.
//!
//! `cargo run --release -p ferroflash-context-parallel --example ring -- --gpus 2 --tokens 16384,65536`
//!
//! The program needs NCCL (`libnccl.so`) when it runs. First, it compares the ranks' results with one GPU's.
use context_parallel::{
    Chunks, Comm, Nccl, NcclId, Transfer, Transport, decode_attention, decode_workspace, ring_attention,
    ring_backward, ring_backward_workspace, ring_workspace,
};
use ferroflash::driver::{Harness, RawBuffer, RawDriver, RawStream};
use ferroflash::request::{
    AttentionBackward, AttentionRequest, Counters, Index, KvCache, KvPages, LseView, Mask, Scratch,
    TensorView, Workspace,
};
use ferroflash::{Attention, DType, Error};
use std::ops::Range;
use std::time::Duration;

const HEADS: [usize; 2] = [32, 8];
const HEAD_DIM: usize = 128;
/// Keys of a page of the KV cache.
const PAGE: usize = 64;
const LIMIT: Duration = Duration::from_secs(120);

struct Options {
    gpus: usize,
    tokens: Vec<usize>,
    keys: Vec<usize>,
    rounds: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let id = Nccl::id()?;
    std::thread::scope(|scope| {
        let (options, id) = (&options, &id);
        let ranks: Vec<_> =
            (0..options.gpus).map(|rank| scope.spawn(move || run(options, rank, id))).collect();
        let ended = ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err(lost())));
        ended.collect::<Result<Vec<()>, Error>>()
    })?;
    Ok(())
}

fn lost() -> Error {
    Error::driver("rank", None, "it has panicked")
}

/// Reads `--gpus N --tokens A,B --keys A,B --rounds N`.
fn options() -> Result<Options, Box<dyn std::error::Error>> {
    let tokens = (14..20).map(|power| 1 << power).collect();
    let mut options = Options { gpus: 2, tokens, keys: vec![1 << 20], rounds: 5 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let list =
            || value.split(',').filter(|x| !x.is_empty()).map(str::parse).collect::<Result<Vec<usize>, _>>();
        match name.as_str() {
            "--gpus" => options.gpus = value.parse()?,
            "--tokens" => options.tokens = list()?,
            "--keys" => options.keys = list()?,
            "--rounds" => options.rounds = value.parse()?,
            _ => return Err(format!("unknown option {name}: --gpus, --tokens, --keys or --rounds").into()),
        }
    }
    Ok(options)
}

/// A rank: its GPU, and what it measures.
struct Rank<'a> {
    attention: &'a Attention<RawDriver>,
    nccl: &'a Nccl,
    stream: &'a RawStream,
    rounds: usize,
}

/// Runs all measurements on one rank.
fn run(options: &Options, rank: usize, id: &NcclId) -> Result<(), Error> {
    let attention = Attention::new(RawDriver::primary(rank as u32)?);
    let nccl = Nccl::new(rank, rank, options.gpus, id)?;
    let stream = attention.driver().stream()?;
    let of = Rank { attention: &attention, nccl: &nccl, stream: &stream, rounds: options.rounds };
    of.check(3001)?;
    options.tokens.iter().try_for_each(|tokens| of.ring(*tokens))?;
    options.keys.iter().try_for_each(|keys| of.decode(*keys))
}

/// Device memory with a view of bf16 elements.
struct Tensor {
    view: TensorView,
    buffer: RawBuffer,
}

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
    fn forward(&self) -> AttentionRequest<'static> {
        let [q, k, v, o, ..] = self.all.each_ref().map(|tensor| tensor.view);
        AttentionRequest::dense(q, k, v, o).mask(Mask::Causal).lse(self.lse)
    }

    fn backward(&self) -> AttentionBackward<'static> {
        let [_, _, _, _, d_o, dq, dk, dv] = self.all.each_ref().map(|tensor| tensor.view);
        AttentionBackward::new(self.forward(), d_o, dq, dk, dv)
    }
}

/// A number between -1 and 1 for each element, rounded to bf16.
fn element(seed: u64, index: u64) -> u16 {
    let mut x = (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let unit = ((x ^ x >> 32) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (unit.to_bits() >> 16) as u16
}

impl Rank<'_> {
    fn driver(&self) -> &RawDriver {
        self.attention.driver()
    }

    fn comm(&self) -> Comm<'_, RawDriver, Nccl> {
        Comm::new(self.attention, self.nccl, self.stream)
    }

    fn wait(&self) -> Result<(), Error> {
        // SAFETY: the stream belongs to the primary context.
        unsafe { self.nccl.wait(self.stream, LIMIT) }
    }

    /// Allocates a tensor with the elements of some rows.
    fn tensor(&self, seed: u64, heads: usize, positions: &[Range<usize>]) -> Result<Tensor, Error> {
        let rows: usize = positions.iter().map(ExactSizeIterator::len).sum();
        let (width, driver) = (heads * HEAD_DIM, self.driver());
        let mut buffer = driver.allocate((rows * width * 2).max(16))?;
        let mut at = 0;
        // Large tensors repeat their first rows: numbers cost more time than the measurement.
        let repeated = 1 << 14;
        let all = positions.iter().flat_map(|range| {
            let chunks = (range.start..range.end).step_by(repeated);
            chunks.map(move |start| start..range.end.min(start + repeated))
        });
        let mut block: (Range<usize>, Vec<u8>) = (0..0, Vec::new());
        for rows in all {
            if block.0.len() != repeated || rows.len() != repeated {
                let elements = (rows.start * width) as u64..(rows.end * width) as u64;
                block.1 = elements.flat_map(|index| element(seed, index).to_le_bytes()).collect();
                block.0 = rows;
            }
            driver.upload_at(&mut buffer, at, &block.1)?;
            at += block.1.len();
        }
        let (address, elements) = (driver.address(&buffer), (rows * width) as u64);
        Ok(Tensor {
            view: TensorView::bshd(address, elements, DType::Bf16, [1, rows, heads, HEAD_DIM]),
            buffer,
        })
    }

    fn tensors(&self, positions: &[Range<usize>]) -> Result<Tensors, Error> {
        let mut all = Vec::new();
        for (seed, of_keys) in OF_KEYS.into_iter().enumerate() {
            all.push(self.tensor(seed as u64, HEADS[usize::from(of_keys)], positions)?);
        }
        let Ok(all) = <[Tensor; 8]>::try_from(all) else { unreachable!("eight tensors") };
        let rows = all[0].view.shape[1];
        let memory = self.driver().allocate((HEADS[0] * rows * 4).max(4))?;
        let address = self.driver().address(&memory);
        let lse = LseView::contiguous(address, (HEADS[0] * rows) as u64, [1, HEADS[0], rows]);
        Ok(Tensors { all, lse, _lse: memory })
    }

    /// Allocates a workspace.
    fn workspace(&self, bytes: u64) -> Result<(RawBuffer, Scratch), Error> {
        let memory = self.driver().allocate(bytes.max(256) as usize)?;
        let scratch = Scratch::workspace(self.driver().address(&memory), bytes.max(256));
        Ok((memory, scratch))
    }

    /// Returns the mean time of some work in ms, after one round that loads kernels and connects ranks.
    fn time(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        work()?;
        self.wait()?;
        let driver = self.driver();
        let start = driver.record(self.stream)?;
        (0..self.rounds).try_for_each(|_| work())?;
        let end = driver.record(self.stream)?;
        self.wait()?;
        Ok(driver.elapsed(&start, &end)?.as_secs_f64() * 1e3 / self.rounds as f64)
    }

    /// Launches a request of one GPU.
    fn alone(&self, request: &impl ferroflash::plan::Request) -> Result<(), Error> {
        let plan = self.attention.plan(request)?;
        // SAFETY: the tensors live until the stream has been waited for, and nothing else uses them.
        unsafe { self.attention.launch(&plan, request, self.stream) }
    }

    /// Compares the ranks' results with those of the whole sequence on the own GPU.
    fn check(&self, positions: usize) -> Result<(), Error> {
        let chunks = Chunks::zigzag(positions, self.nccl.ranks())?;
        let (own, whole) = (chunks.of(self.nccl.rank()), std::slice::from_ref(&(0..positions)).to_vec());
        let (ranks, one) = (self.tensors(own)?, self.tensors(&whole)?);
        let comm = self.comm();
        let (_forward, scratch) = self.workspace(ring_workspace(&comm, &chunks, &ranks.forward())?)?;
        let (_backward, of_backward) =
            self.workspace(ring_backward_workspace(&comm, &chunks, &ranks.backward())?)?;
        let backward = one.backward();
        let bytes = self.attention.plan(&backward)?.scratch_bytes().workspace;
        let (_one, of_one) = self.workspace(bytes)?;
        // SAFETY: as in `alone`.
        unsafe {
            ring_attention(&comm, &chunks, &ranks.forward().scratch(scratch))?;
            ring_backward(&comm, &chunks, &ranks.backward().scratch(of_backward))?;
        }
        self.wait()?;
        self.alone(&one.forward())?;
        self.alone(&backward.scratch(of_one))?;
        self.wait()?;
        let read = |tensor: &Tensor| {
            let mut bytes = vec![0; tensor.view.elements as usize * 2];
            self.driver().download(&tensor.buffer, &mut bytes)?;
            let float = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
            Ok::<Vec<f32>, Error>(bytes.as_chunks().0.iter().map(float).collect())
        };
        let mut differences = Vec::new();
        for (name, index) in [("o", 3), ("dq", 5), ("dk", 6), ("dv", 7)] {
            let (own_values, all) = (read(&ranks.all[index])?, read(&one.all[index])?);
            let width = HEADS[usize::from(OF_KEYS[index])] * HEAD_DIM;
            let expected = own.iter().cloned().flatten().flat_map(|row| &all[row * width..(row + 1) * width]);
            let largest = all.iter().fold(0f32, |a, x| a.max(x.abs()));
            let worst = own_values.iter().zip(expected).map(|(a, b)| (a - b).abs());
            // A NaN counts as the largest difference.
            let worst = worst.fold(0f32, |a, x| if x >= a || x.is_nan() { x } else { a });
            differences.push(format!("\"{name}\": {worst:e}, \"largest_{name}\": {largest:e}"));
        }
        let rank = self.nccl.rank();
        println!("{{\"check\": {positions}, \"rank\": {rank}, {}}}", differences.join(", "));
        Ok(())
    }

    /// Measures ring attention of a sequence, beside the whole sequence on one GPU.
    fn ring(&self, positions: usize) -> Result<(), Error> {
        let (rank, ranks, comm) = (self.nccl.rank(), self.nccl.ranks(), self.comm());
        let chunks = Chunks::zigzag(positions, ranks)?;
        let shared = {
            let of = self.tensors(chunks.of(rank))?;
            let (_forward, scratch) = self.workspace(ring_workspace(&comm, &chunks, &of.forward())?)?;
            let (_backward, of_backward) =
                self.workspace(ring_backward_workspace(&comm, &chunks, &of.backward())?)?;
            let (forward, backward) = (of.forward().scratch(scratch), of.backward().scratch(of_backward));
            // SAFETY: as in `alone`.
            let alone = self.time(&mut || unsafe { ring_attention(&comm, &chunks, &forward) })?;
            // SAFETY: as in `alone`.
            let both = self.time(&mut || unsafe {
                ring_attention(&comm, &chunks, &forward)?;
                ring_backward(&comm, &chunks, &backward)
            })?;
            let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let [sent, received] = [1, 6].map(|of_keys| of.all[of_keys].view);
            let bytes = sent.elements * 2;
            let (address, target) = (sent.address, received.address);
            let transfers =
                [Transfer::Send { to, address, bytes }, Transfer::Receive { from, address: target, bytes }];
            // SAFETY: both views are live tensors of `of` with `bytes` bytes. The stream is this engine's.
            let link = self.time(&mut || unsafe {
                self.nccl.start(self.driver(), self.stream, &transfers)?;
                self.nccl.finish(self.driver(), self.stream)
            })?;
            [alone, both, 2.0 * link, 2.0 * bytes as f64]
        };
        let one = {
            let of = self.tensors(std::slice::from_ref(&(0..positions)))?;
            let bytes = self.attention.plan(&of.backward())?.scratch_bytes().workspace;
            let (_memory, scratch) = self.workspace(bytes)?;
            let (forward, backward) = (of.forward(), of.backward().scratch(scratch));
            let alone = self.time(&mut || self.alone(&forward))?;
            let both = self.time(&mut || self.alone(&forward).and_then(|()| self.alone(&backward)))?;
            [alone, both]
        };
        let [forward, both, link, bytes] = shared;
        let share = |of: usize, time: f64| one[of] / time / ranks as f64;
        println!(
            "{{\"ring\": {positions}, \"rank\": {rank}, \"ranks\": {ranks}, \"forward_ms\": {forward:.3}, \
             \"forward_backward_ms\": {both:.3}, \"one_gpu_forward_ms\": {:.3}, \
             \"one_gpu_forward_backward_ms\": {:.3}, \"share_of_ideal_forward\": {:.4}, \
             \"share_of_ideal_forward_backward\": {:.4}, \"bytes_per_step\": {bytes}, \
             \"step_link_ms\": {link:.3}}}",
            one[0],
            one[1],
            share(0, forward),
            share(1, both),
        );
        Ok(())
    }

    /// Measures decode of one sequence, beside all keys on one GPU.
    fn decode(&self, keys: usize) -> Result<(), Error> {
        let (rank, ranks, comm) = (self.nccl.rank(), self.nccl.ranks(), self.comm());
        let query = std::slice::from_ref(&(0..1));
        let (q, o) = (self.tensor(0, HEADS[0], query)?, self.tensor(1, HEADS[0], query)?);
        let mut times = [0.0; 2];
        for (time, held) in times.iter_mut().zip([keys / ranks, keys]) {
            let pages = held.div_ceil(PAGE);
            let pool = |seed| {
                let Tensor { mut view, buffer } =
                    self.tensor(seed, HEADS[1], std::slice::from_ref(&(0..pages * PAGE)))?;
                view = TensorView::bshd(
                    view.address,
                    view.elements,
                    DType::Bf16,
                    [pages, PAGE, HEADS[1], HEAD_DIM],
                );
                Ok::<_, Error>((view, buffer))
            };
            let ((k, _k), (v, _v)) = (pool(2)?, pool(3)?);
            let integers = |values: &mut dyn Iterator<Item = i32>| {
                let bytes: Vec<u8> = values.flat_map(i32::to_le_bytes).collect();
                let mut buffer = self.driver().allocate(bytes.len())?;
                self.driver().upload(&mut buffer, &bytes)?;
                Ok::<_, Error>((Index::new(self.driver().address(&buffer), bytes.len() as u64 / 4), buffer))
            };
            let (table, _table) = integers(&mut (0..pages as i32))?;
            let (lengths, _lengths) = integers(&mut std::iter::once(held as i32))?;
            let cache = KvCache::paged(KvPages::new(k, v), table, pages, lengths);
            let memory = self.driver().allocate(HEADS[0] * 4)?;
            let lse = LseView::contiguous(self.driver().address(&memory), HEADS[0] as u64, [1, HEADS[0], 1]);
            let request = AttentionRequest::cached(q.view, cache, o.view).lse(lse).scratch(Scratch::Fastest);
            let bytes = self.attention.plan(&request)?.scratch_bytes();
            let workspace = self.driver().allocate(bytes.workspace.max(16) as usize)?;
            let mut counters = self.driver().allocate(bytes.counters.max(16) as usize)?;
            self.driver().fill(&mut counters, 0)?;
            let workspace = (bytes.workspace > 0).then(|| Scratch::Memory {
                workspace: Workspace { address: self.driver().address(&workspace), bytes: bytes.workspace },
                counters: (bytes.counters > 0)
                    .then(|| Counters { address: self.driver().address(&counters), bytes: bytes.counters }),
            });
            let request = request.scratch(workspace.unwrap_or(Scratch::None));
            let bytes = decode_workspace(&comm, &request)?;
            let messages = self.driver().allocate(bytes as usize)?;
            let messages = Workspace { address: self.driver().address(&messages), bytes };
            let is_shared = held < keys;
            let step = || match is_shared {
                // SAFETY: as in `alone`.
                true => unsafe { decode_attention(&comm, &request, messages) },
                false => self.alone(&request),
            };
            *time = self.time(&mut || (0..20).try_for_each(|_| step()))? / 20.0;
        }
        let [shared, one] = times;
        println!(
            "{{\"decode\": {keys}, \"rank\": {rank}, \"ranks\": {ranks}, \"ms\": {shared:.4}, \
             \"one_gpu_ms\": {one:.4}, \"speedup\": {:.3}}}",
            one / shared
        );
        Ok(())
    }
}
