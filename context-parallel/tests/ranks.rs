//! Attention on several ranks, which are threads with simulated cards, against attention of the whole
//! sequence in f64.
use context_parallel::{
    Chunks, Comm, Threads, ring_attention, ring_backward, ring_backward_workspace, ring_workspace,
};
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask, Scratch, TensorView};
use ferroflash::{Attention, DType, Error};
use reference::{GradientReference, HostTensor, Inputs, Random, Reference, Upstream};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A sequence on several ranks.
struct Case {
    name: &'static str,
    card: &'static str,
    ranks: usize,
    cut: fn(usize, usize) -> Result<Chunks, Error>,
    batch: usize,
    positions: usize,
    heads: [usize; 2],
    head_dim: usize,
    mask: Mask,
}

const CASE: Case = Case {
    name: "two ranks",
    card: "a100",
    ranks: 2,
    cut: Chunks::zigzag,
    batch: 1,
    positions: 64,
    heads: [2, 1],
    head_dim: 64,
    mask: Mask::Causal,
};

fn cases() -> [Case; 8] {
    let window = |left, right| Mask::Window { left: Some(left), right };
    [
        CASE,
        Case { name: "Hopper's kernels", card: "h200", positions: 100, head_dim: 128, ..CASE },
        Case { name: "three ranks, uneven, two batches", ranks: 3, batch: 2, positions: 85, ..CASE },
        Case { name: "full, contiguous", cut: Chunks::contiguous, mask: Mask::Full, positions: 50, ..CASE },
        Case { name: "a window", ranks: 3, mask: window(20, Some(0)), positions: 96, ..CASE },
        Case { name: "a window to both sides", mask: window(5, Some(9)), cut: Chunks::contiguous, ..CASE },
        Case { name: "a rank without keys", ranks: 3, positions: 2, ..CASE },
        Case { name: "one rank", ranks: 1, positions: 40, heads: [2, 2], ..CASE },
    ]
}

/// The tensors of a sequence, `[batch, positions, heads, head_dim]`: Q, K, V and the gradient of O.
struct Tensors {
    bits: [Vec<u16>; 4],
    shapes: [[usize; 4]; 4],
}

const DTYPE: DType = DType::F16;

impl Case {
    fn tensors(&self) -> Tensors {
        let Case { batch, positions, heads: [heads_q, heads_k], head_dim, .. } = *self;
        let shapes = [heads_q, heads_k, heads_k, heads_q].map(|heads| [batch, positions, heads, head_dim]);
        let mut random = Random::new(1);
        let bits = shapes.map(|shape| random.normals(DTYPE, shape.iter().product()));
        Tensors { bits, shapes }
    }

    fn problem(&self) -> Problem {
        let [heads_q, heads_k] = self.heads;
        let problem = Problem::new(DTYPE, self.batch, self.positions, heads_q, self.head_dim);
        problem.heads_k(heads_k).mask(self.mask)
    }
}

/// Memory of a rank: its rows of tensors of the sequence.
struct Rank<'a> {
    driver: &'a SimDriver,
    positions: &'a [Range<usize>],
}

impl Rank<'_> {
    /// Returns the elements of the rank's rows, `width` per row, of a tensor `[outer, positions, width]`.
    fn places(&self, outer: usize, positions: usize, width: usize) -> impl Iterator<Item = usize> + '_ {
        let of_row = move |row: usize| row * width..(row + 1) * width;
        let rows =
            move |index: usize| self.positions.iter().cloned().flatten().map(move |p| index * positions + p);
        (0..outer).flat_map(rows).flat_map(of_row)
    }

    fn tensor(&self, bits: &[u16], [batch, positions, heads, columns]: [usize; 4]) -> Result<Tensor, Error> {
        let own: Vec<u16> = self.places(batch, positions, heads * columns).map(|at| bits[at]).collect();
        let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut buffer = self.driver.allocate(bytes.len().max(16))?;
        self.driver.upload(&mut buffer, &bytes)?;
        let rows = self.positions.iter().map(ExactSizeIterator::len).sum();
        let (address, elements) = (self.driver.address(&buffer), own.len() as u64);
        Ok(Tensor { view: TensorView::bshd(address, elements, DTYPE, [batch, rows, heads, columns]), buffer })
    }

    /// Adds the rank's rows of an output to the tensor of the sequence.
    fn read(
        &self,
        from: &Tensor,
        to: &mut [u16],
        [batch, positions, heads, columns]: [usize; 4],
    ) -> Result<(), Error> {
        let mut bytes = vec![0; from.view.elements as usize * 2];
        self.driver.download(&from.buffer, &mut bytes)?;
        let places = self.places(batch, positions, heads * columns);
        places.zip(bytes.as_chunks().0).for_each(|(at, x)| to[at] = u16::from_le_bytes(*x));
        Ok(())
    }
}

struct Tensor {
    view: TensorView,
    buffer: SimBuffer,
}

/// O and the gradients of Q, K and V of some rows, and the LSE.
#[derive(Clone, PartialEq)]
struct Results {
    tensors: [Vec<u16>; 4],
    lse: Vec<f32>,
}

/// NaN in every type.
const POISON: u16 = 0x7fff;

/// Runs one rank, and writes its rows of the results.
fn run(
    case: &Case,
    chunks: &Chunks,
    transport: &Threads,
    rank: usize,
    to: &mut Results,
) -> Result<(), Error> {
    let attention = Attention::new(SimDriver::new(case.card)?);
    let driver = attention.driver();
    let comm = Comm::new(&attention, transport, &SimStream);
    let of = Rank { driver, positions: chunks.of(rank) };
    let Tensors { bits, shapes } = case.tensors();
    let [q, k, v, d_o] = [0, 1, 2, 3].map(|i| of.tensor(&bits[i], shapes[i]).expect("memory"));
    let output = |shape: [usize; 4]| of.tensor(&vec![POISON; shape.iter().product()], shape).expect("memory");
    let [o, dq, dk, dv] = [shapes[0], shapes[0], shapes[1], shapes[2]].map(output);
    let [batch, rows, heads, _] = q.view.shape;
    let values = batch * rows * heads;
    let mut lse_memory = driver.allocate((values * 4).max(4))?;
    driver.fill(&mut lse_memory, 0xff)?;
    let lse = LseView::contiguous(driver.address(&lse_memory), values as u64, [batch, heads, rows]);

    let forward = AttentionRequest::dense(q.view, k.view, v.view, o.view).mask(case.mask).lse(lse);
    let bytes = ring_workspace(&comm, chunks, &forward)?;
    let workspace = driver.allocate(bytes as usize)?;
    let scratch = Scratch::workspace(driver.address(&workspace), bytes);
    // SAFETY: the simulator checks every access.
    unsafe { ring_attention(&comm, chunks, &forward.scratch(scratch))? };
    let backward = AttentionBackward::new(forward, d_o.view, dq.view, dk.view, dv.view);
    let bytes = ring_backward_workspace(&comm, chunks, &backward)?;
    let workspace = driver.allocate(bytes as usize)?;
    let scratch = Scratch::workspace(driver.address(&workspace), bytes);
    // SAFETY: as above.
    unsafe { ring_backward(&comm, chunks, &backward.scratch(scratch))? };
    driver.synchronize(&SimStream)?;

    let outputs = [(o, 0), (dq, 0), (dk, 1), (dv, 2)];
    for ((tensor, of_shape), to) in outputs.iter().zip(&mut to.tensors) {
        of.read(tensor, to, shapes[*of_shape])?;
    }
    let mut bytes = vec![0; values * 4];
    driver.download(&lse_memory, &mut bytes)?;
    let places = of.places(batch * heads, case.positions, 1);
    places.zip(bytes.as_chunks().0).for_each(|(at, x)| to.lse[at] = f32::from_le_bytes(*x));
    Ok(())
}

/// Runs all ranks, and returns the results of the whole sequence.
fn all(case: &Case) -> Result<Results, Error> {
    let chunks = (case.cut)(case.positions, case.ranks)?;
    let Tensors { shapes, .. } = case.tensors();
    let elements = |of: usize| vec![POISON; shapes[of].iter().product()];
    let lse = vec![f32::NAN; case.batch * case.heads[0] * case.positions];
    let empty = Results { tensors: [elements(0), elements(0), elements(1), elements(2)], lse };
    let transports = Threads::new(case.ranks, Duration::from_secs(600));
    let parts = std::thread::scope(|scope| {
        let (chunks, empty) = (&chunks, &empty);
        let spawn = |(rank, transport): (usize, Threads)| {
            scope.spawn(move || {
                let mut results = empty.clone();
                run(case, chunks, &transport, rank, &mut results).map(|()| results)
            })
        };
        let threads: Vec<_> = transports.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let mut whole = empty;
    for (rank, part) in parts.iter().enumerate() {
        let of = Rank { driver: &SimDriver::new(case.card)?, positions: chunks.of(rank) };
        for (index, shape) in [0, 0, 1, 2].into_iter().enumerate() {
            let [batch, positions, heads, columns] = shapes[shape];
            let places = of.places(batch, positions, heads * columns);
            places.for_each(|at| whole.tensors[index][at] = part.tensors[index][at]);
        }
        let places = of.places(case.batch * case.heads[0], case.positions, 1);
        places.for_each(|at| whole.lse[at] = part.lse[at]);
    }
    Ok(whole)
}

/// The ranks compute the attention of the whole sequence, and its gradients.
#[test]
fn ranks_compute_the_whole_sequence() {
    for case in cases() {
        let name = case.name;
        let results = all(&case).unwrap_or_else(|error| panic!("{name}: {error}"));
        let Tensors { bits, shapes } = case.tensors();
        let host = |bits, shape| HostTensor::bshd(bits, DTYPE, shape).expect("a tensor");
        let [q, k, v, d_o] = [0, 1, 2, 3].map(|of| host(&bits[of], shapes[of]));
        let inputs = Inputs::new(case.problem(), q, k, v).expect("inputs");
        let [o, dq, dk, dv] = [0, 1, 2, 3].map(|of| host(&results.tensors[of], shapes[[0, 0, 1, 2][of]]));
        let verdict = Reference::new(&inputs)
            .of_merged_states(&inputs, 1.0)
            .judge(&o, Some(&results.lse))
            .expect("of one shape");
        let failures: Vec<_> = verdict.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:?}");
        let reference = GradientReference::new(&inputs, &Upstream { d_o, d_lse: None });
        for worst in reference.judge([Some(&dq), Some(&dk), Some(&dv)], [None, None]) {
            assert!(worst.passed(), "{name}: {worst:?}");
        }
    }
}

/// Repeated calls give identical bits.
#[test]
fn repeated_calls_give_identical_bits() {
    let case = Case { ranks: 3, positions: 50, ..CASE };
    let [first, again] = [(); 2].map(|()| all(&case).expect("runs"));
    assert!(first == again);
}

/// A rank that ends, before or between its transfers, ends the others with an error, at once.
#[test]
fn a_lost_rank_ends_the_others() {
    let chunks = Chunks::zigzag(64, 3).expect("chunks");
    let mut transports = Threads::new(3, Duration::from_secs(600)).into_iter();
    drop(transports.next());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let case = &Case { ranks: 3, ..CASE };
        for (index, transport) in transports.enumerate() {
            let chunks = &chunks;
            scope.spawn(move || {
                let Tensors { shapes, .. } = case.tensors();
                let tensors = [0, 0, 1, 2].map(|of| vec![0; shapes[of].iter().product()]);
                let mut results = Results { tensors, lse: vec![0.0; 2 * 64] };
                let error =
                    run(case, chunks, &transport, index + 1, &mut results).expect_err("rank 0 is lost");
                assert!(error.to_string().contains("has ended"), "{error}");
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Several ranks refuse by name the requests that only one rank can compute.
#[test]
fn other_requests_are_refused_by_name() {
    let attention = Attention::new(SimDriver::new("a100").expect("a card"));
    let transports = Threads::new(1, Duration::from_secs(1));
    let comm = Comm::new(&attention, &transports[0], &SimStream);
    let shape = [1, 64, 2, 64];
    let view = |address| TensorView::bshd(address, 64 * 2 * 64, DTYPE, shape);
    let [q, k, v, o] = [1, 2, 3, 4].map(|n| view(n << 40));
    let lse = LseView::contiguous(5 << 40, 2 * 64, [1, 2, 64]);
    let request = AttentionRequest::dense(q, k, v, o).lse(lse);
    let chunks = |positions, ranks| Chunks::zigzag(positions, ranks).expect("chunks");
    let apart = TensorView { strides: [64 * 2 * 128, 2 * 128, 128, 1], elements: 1 << 20, ..k };
    let wrong = [
        (chunks(64, 2), request, "chunks.ranks: 2"),
        (chunks(63, 1), request, "q.shape"),
        (chunks(64, 1), AttentionRequest::dense(q, k, v, o), "invalid lse"),
        (chunks(64, 1), request.mask(Mask::Chunked { chunk: 8 }), "mask chunked 8"),
        (chunks(64, 1), request.config("fwd"), "config on several ranks"),
        (chunks(64, 1), AttentionRequest::dense(q, apart, v, o).lse(lse), "k.strides"),
    ];
    for (chunks, request, name) in wrong {
        let error = ring_workspace(&comm, &chunks, &request).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
}
