//! Attention on several ranks without a GPU: threads with simulated cards compute a ring, and compare their
//! rows with one card's.
//!
//! `cargo run --release -p ferroflash-context-parallel --example simulated` uses the crate's transport of
//! threads. With the argument `sockets`, the ranks use the transport in `sockets.rs`: a whole implementation
//! of `Transport`, from which one for MPI or for an engine's communicator can begin.
mod sockets;

use context_parallel::{Chunks, Comm, Form, Threads, Transport};
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::request::{AttentionRequest, LseView, Mask, Scratch, TensorView};
use ferroflash::{Attention, DType, Error};
use std::ops::Range;
use std::time::Duration;

const RANKS: usize = 3;
const POSITIONS: usize = 200;
const HEADS: [usize; 2] = [4, 2];
const HEAD_DIM: usize = 64;
const LIMIT: Duration = Duration::from_secs(30);

/// The tensors of some positions.
struct Tensors {
    request: AttentionRequest<'static>,
    o: SimBuffer,
    _others: Vec<SimBuffer>,
}

/// Returns the bf16 elements of some rows.
fn elements(seed: usize, heads: usize, rows: &[Range<usize>]) -> Vec<u8> {
    let row = heads * HEAD_DIM;
    let all = rows.iter().cloned().flatten().flat_map(|position| position * row..(position + 1) * row);
    let wave = |at: usize| ((at * 31 + seed * 7) as f32 * 0.618).sin();
    all.flat_map(|at| ((wave(at).to_bits() >> 16) as u16).to_le_bytes()).collect()
}

impl Tensors {
    fn new(card: &SimDriver, positions: &[Range<usize>]) -> Result<Self, Error> {
        let rows: usize = positions.iter().map(ExactSizeIterator::len).sum();
        let tensor = |seed: usize, heads: usize| {
            let bytes = elements(seed, heads, positions);
            let mut buffer = card.allocate(bytes.len())?;
            card.upload(&mut buffer, &bytes)?;
            let shape = [1, rows, heads, HEAD_DIM];
            let view = TensorView::bshd(card.address(&buffer), bytes.len() as u64 / 2, DType::Bf16, shape);
            Ok::<_, Error>((view, buffer))
        };
        let [heads, heads_k] = HEADS;
        let ((q, of_q), (k, of_k)) = (tensor(1, heads)?, tensor(2, heads_k)?);
        let ((v, of_v), (o, of_o)) = (tensor(3, heads_k)?, tensor(4, heads)?);
        let of_lse = card.allocate(heads * rows * 4)?;
        let lse = LseView::contiguous(card.address(&of_lse), (heads * rows) as u64, [1, heads, rows]);
        let request = AttentionRequest::dense(q, k, v, o).mask(Mask::Causal).lse(lse);
        Ok(Tensors { request, o: of_o, _others: vec![of_q, of_k, of_v, of_lse] })
    }

    fn read(&self, card: &SimDriver) -> Result<Vec<f32>, Error> {
        let mut bytes = vec![0; self.request.o.elements as usize * 2];
        card.download(&self.o, &mut bytes)?;
        let float = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
        Ok(bytes.as_chunks().0.iter().map(float).collect())
    }
}

/// Computes the rows of one rank.
fn rank(transport: &impl Transport<SimDriver>, chunks: &Chunks) -> Result<Vec<f32>, Error> {
    let attention = Attention::new(SimDriver::new("h200")?);
    let card = attention.driver();
    let comm = Comm::new(&attention, transport, &SimStream);
    let tensors = Tensors::new(card, chunks.of(transport.rank()))?;
    let bytes = Form::Ring.attention_workspace(&comm, chunks, &tensors.request)?;
    let workspace = card.allocate(bytes as usize)?;
    let request = tensors.request.scratch(Scratch::workspace(card.address(&workspace), bytes));
    // SAFETY: the buffers are as large as their views say, and nothing else uses them.
    unsafe { Form::Ring.attention(&comm, chunks, &request)? };
    card.synchronize(&SimStream)?;
    tensors.read(card)
}

/// Computes all rows on one card.
fn alone() -> Result<Vec<f32>, Error> {
    let attention = Attention::new(SimDriver::new("h200")?);
    let tensors = Tensors::new(attention.driver(), std::slice::from_ref(&(0..POSITIONS)))?;
    let plan = attention.plan(&tensors.request)?;
    // SAFETY: as above.
    unsafe { attention.launch(&plan, &tensors.request, &SimStream)? };
    attention.driver().synchronize(&SimStream)?;
    tensors.read(attention.driver())
}

/// Runs each rank on a thread, and compares its rows.
fn compare<T: Transport<SimDriver> + Send>(transports: Vec<T>) -> Result<(), Error> {
    let (chunks, width) = (Chunks::zigzag(POSITIONS, RANKS)?, HEADS[0] * HEAD_DIM);
    let found = std::thread::scope(|scope| {
        let chunks = &chunks;
        let spawn = |transport| scope.spawn(move || rank(&transport, chunks));
        let threads: Vec<_> = transports.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let whole = alone()?;
    for (rank, found) in found.iter().enumerate() {
        let rows = chunks.of(rank).iter().cloned().flatten();
        let expected = rows.flat_map(|row| &whole[row * width..(row + 1) * width]);
        let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        // A NaN counts as the largest difference.
        let worst = worst.fold(0f32, |most, x| if x >= most || x.is_nan() { x } else { most });
        println!("rank {rank} has positions {:?}: O differs by at most {worst}", chunks.of(rank));
        // Two roundings to bf16, of numbers up to 1.
        if worst.is_nan() || worst >= 1.0 / 64.0 {
            return Err(Error::driver("compare", None, format!("rank {rank} differs by {worst}")));
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    match std::env::args().nth(1).as_deref() {
        None | Some("threads") => compare(Threads::new(RANKS, LIMIT)),
        Some("sockets") => compare(sockets::Sockets::new(RANKS, LIMIT)?),
        Some(other) => Err(Error::invalid("transport", other, "it must be threads or sockets")),
    }
}
