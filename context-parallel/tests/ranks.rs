//! Attention on several ranks, which are threads with simulated cards, against attention of the whole
//! sequence in f64.
use context_parallel::{Chunks, Comm, Form, Rows, Threads, Transfer, Transport};
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask, Scratch, TensorView};
use ferroflash::{Attention, DType, Error};
use reference::{GradientReference, HostTensor, Inputs, Random, Reference, Upstream};
use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Sequences on several ranks.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    card: &'static str,
    ranks: usize,
    cut: fn(&[usize], usize) -> Result<Chunks, Error>,
    batch: usize,
    lengths: &'static [usize],
    heads: [usize; 2],
    head_dim: usize,
    mask: Mask,
}

const CASE: Case = Case {
    name: "two ranks",
    card: "a100",
    ranks: 2,
    cut: Chunks::packed,
    batch: 1,
    lengths: &[64],
    heads: [4, 2],
    head_dim: 64,
    mask: Mask::Causal,
};

fn contiguous(lengths: &[usize], ranks: usize) -> Result<Chunks, Error> {
    Chunks::contiguous(lengths.iter().sum(), ranks)?.sequences(lengths)
}

fn cases() -> [Case; 11] {
    let window = |left, right| Mask::Window { left: Some(left), right };
    [
        CASE,
        Case { name: "Hopper's kernels", card: "h200", lengths: &[100], head_dim: 128, ..CASE },
        Case { name: "three ranks, two batches", ranks: 3, batch: 2, lengths: &[85], heads: [6, 3], ..CASE },
        Case { name: "full, contiguous", cut: contiguous, mask: Mask::Full, lengths: &[50], ..CASE },
        Case { name: "a window, four ranks", ranks: 4, mask: window(20, Some(0)), lengths: &[97], ..CASE },
        Case { name: "a window to both sides", mask: window(5, Some(9)), cut: contiguous, ..CASE },
        Case { name: "a rank without keys, one key head", ranks: 3, lengths: &[2], heads: [3, 1], ..CASE },
        Case { name: "one rank", ranks: 1, lengths: &[40], heads: [2, 2], ..CASE },
        Case { name: "varlen", lengths: &[33, 1, 0, 50], ..CASE },
        Case {
            name: "varlen, a window, contiguous",
            cut: contiguous,
            lengths: &[9, 60],
            mask: window(12, Some(3)),
            ..CASE
        },
        Case { name: "varlen, four ranks, one key head", ranks: 4, lengths: &[3, 70], heads: [4, 1], ..CASE },
    ]
}

/// The tensors of all positions, `[batch, positions, heads, head_dim]`: Q, K, V and the gradient of O. The
/// gradient of the LSE is `[batch, heads, positions]`.
struct Tensors {
    bits: [Vec<u16>; 4],
    shapes: [[usize; 4]; 4],
    d_lse: Vec<f32>,
}

const DTYPE: DType = DType::F16;

impl Case {
    fn positions(&self) -> usize {
        self.lengths.iter().sum()
    }

    fn tensors(&self) -> Tensors {
        let Case { batch, heads: [heads_q, heads_k], head_dim, .. } = *self;
        let positions = self.positions();
        let shapes = [heads_q, heads_k, heads_k, heads_q].map(|heads| [batch, positions, heads, head_dim]);
        let mut random = Random::new(1);
        let bits = shapes.map(|shape| random.normals(DTYPE, shape.iter().product()));
        let d_lse = (0..batch * heads_q * positions).map(|at| (at * 37 % 19) as f32 / 9.0 - 1.0).collect();
        Tensors { bits, shapes, d_lse }
    }

    /// Returns the problem of one sequence.
    fn problem(&self, positions: usize) -> Problem {
        let [heads_q, heads_k] = self.heads;
        let problem = Problem::new(DTYPE, self.batch, positions, heads_q, self.head_dim);
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
    (case, form): (&Case, Form),
    chunks: &Chunks,
    transport: &impl Transport<SimDriver>,
    rank: usize,
    to: &mut Results,
) -> Result<(), Error> {
    let attention = Attention::new(SimDriver::new(case.card)?);
    let driver = attention.driver();
    let comm = Comm::new(&attention, transport, &SimStream);
    let of = Rank { driver, positions: chunks.of(rank) };
    let Tensors { bits, shapes, d_lse } = case.tensors();
    let [q, k, v, d_o] = [0, 1, 2, 3].map(|i| of.tensor(&bits[i], shapes[i]).expect("memory"));
    let output = |shape: [usize; 4]| of.tensor(&vec![POISON; shape.iter().product()], shape).expect("memory");
    let [o, dq, dk, dv] = [shapes[0], shapes[0], shapes[1], shapes[2]].map(output);
    let [batch, rows, heads, _] = q.view.shape;
    let places = || of.places(batch * heads, case.positions(), 1);
    let of_rows = |values: &mut dyn Iterator<Item = f32>| {
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let mut memory = driver.allocate(bytes.len().max(4))?;
        driver.upload(&mut memory, &bytes)?;
        let view = LseView::contiguous(driver.address(&memory), bytes.len() as u64 / 4, [batch, heads, rows]);
        Ok::<_, Error>((view, memory))
    };
    let (lse, lse_memory) = of_rows(&mut places().map(|_| f32::NAN))?;
    let (d_lse, _d_lse) = of_rows(&mut places().map(|at| d_lse[at]))?;

    let forward = AttentionRequest::dense(q.view, k.view, v.view, o.view).mask(case.mask).lse(lse);
    let bytes = form.attention_workspace(&comm, chunks, &forward)?;
    let workspace = driver.allocate(bytes as usize)?;
    let scratch = Scratch::workspace(driver.address(&workspace), bytes);
    // SAFETY: the simulator checks every access.
    unsafe { form.attention(&comm, chunks, &forward.scratch(scratch))? };
    let backward = AttentionBackward::new(forward, d_o.view, dq.view, dk.view, dv.view).d_lse(d_lse);
    let bytes = form.backward_workspace(&comm, chunks, &backward)?;
    let workspace = driver.allocate(bytes as usize)?;
    let scratch = Scratch::workspace(driver.address(&workspace), bytes);
    // SAFETY: as above.
    unsafe { form.backward(&comm, chunks, &backward.scratch(scratch))? };
    driver.synchronize(&SimStream)?;

    let outputs = [(o, 0), (dq, 0), (dk, 1), (dv, 2)];
    for ((tensor, of_shape), to) in outputs.iter().zip(&mut to.tensors) {
        of.read(tensor, to, shapes[*of_shape])?;
    }
    let mut bytes = vec![0; batch * rows * heads * 4];
    driver.download(&lse_memory, &mut bytes)?;
    places().zip(bytes.as_chunks().0).for_each(|(at, x)| to.lse[at] = f32::from_le_bytes(*x));
    Ok(())
}

/// Runs all ranks, and returns the results of all positions.
fn all(case: &Case, form: Form) -> Result<Results, Error> {
    let chunks = (case.cut)(case.lengths, case.ranks)?;
    let Tensors { shapes, .. } = case.tensors();
    let elements = |of: usize| vec![POISON; shapes[of].iter().product()];
    let lse = vec![f32::NAN; case.batch * case.heads[0] * case.positions()];
    let empty = Results { tensors: [elements(0), elements(0), elements(1), elements(2)], lse };
    let transports = Threads::new(case.ranks, Duration::from_secs(600));
    let parts = std::thread::scope(|scope| {
        let (chunks, empty) = (&chunks, &empty);
        let spawn = |(rank, transport): (usize, Threads)| {
            scope.spawn(move || {
                let mut results = empty.clone();
                run((case, form), chunks, &transport, rank, &mut results).map(|()| results)
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
        let places = of.places(case.batch * case.heads[0], case.positions(), 1);
        places.for_each(|at| whole.lse[at] = part.lse[at]);
    }
    Ok(whole)
}

/// Returns the elements of one sequence's positions, of a tensor `[outer, positions, width]`.
fn part<T: Copy>(all: &[T], positions: usize, of: &Range<usize>, width: usize) -> Vec<T> {
    let outer = all.chunks(positions * width);
    outer.flat_map(|all| &all[of.start * width..of.end * width]).copied().collect()
}

fn view((bits, shape): &(Vec<u16>, [usize; 4])) -> HostTensor<'_> {
    HostTensor::bshd(bits, DTYPE, *shape).expect("a tensor")
}

/// Compares the results with those of each sequence.
fn check(case: &Case, form: Form) {
    let name = format!("{}, {form:?}", case.name);
    let results = all(case, form).unwrap_or_else(|error| panic!("{name}: {error}"));
    let Tensors { bits, shapes, d_lse } = case.tensors();
    let positions = case.positions();
    let mut end = 0;
    for length in case.lengths.iter().filter(|length| **length > 0) {
        let of = end..end + length;
        end = of.end;
        let host = |bits: &[u16], [batch, _, heads, columns]: [usize; 4]| {
            let bits = part(bits, positions, &of, heads * columns);
            (bits, [batch, *length, heads, columns])
        };
        let own = [0, 1, 2, 3].map(|of| host(&bits[of], shapes[of]));
        let [q, k, v, d_o] = own.each_ref().map(view);
        let inputs = Inputs::new(case.problem(*length), q, k, v).expect("inputs");
        let own = [0, 1, 2, 3].map(|of| host(&results.tensors[of], shapes[[0, 0, 1, 2][of]]));
        let [o, dq, dk, dv] = own.each_ref().map(view);
        let (lse, d_lse) = (part(&results.lse, positions, &of, 1), part(&d_lse, positions, &of, 1));
        let reference = Reference::new(&inputs);
        // Only a ring merges rounded results.
        let reference = if form == Form::Ring { reference.of_merged_states(&inputs, 1.0) } else { reference };
        let verdict = reference.judge(&o, Some(&lse)).expect("of one shape");
        let failures: Vec<_> = verdict.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:?}");
        let reference = GradientReference::new(&inputs, &Upstream { d_o, d_lse: Some(&d_lse) });
        for worst in reference.judge([Some(&dq), Some(&dk), Some(&dv)], [None, None]) {
            assert!(worst.passed(), "{name}: {worst:?}");
        }
    }
}

#[test]
fn a_ring_computes_all_sequences() {
    cases().iter().for_each(|case| check(case, Form::Ring));
}

#[test]
fn a_gather_computes_all_sequences() {
    cases().iter().for_each(|case| check(case, Form::Gather));
}

#[test]
fn an_exchange_of_heads_computes_all_sequences() {
    cases().iter().for_each(|case| check(case, Form::Ulysses));
}

/// Repeated calls give identical bits.
#[test]
fn repeated_calls_give_identical_bits() {
    let case = Case { ranks: 3, lengths: &[41, 9], heads: [3, 1], ..CASE };
    for form in Form::ALL {
        let [first, again] = [(); 2].map(|()| all(&case, form).expect("runs"));
        assert!(first == again, "{form:?}");
    }
}

/// A rank that ends when it should begin its last transfers.
struct Mortal {
    rank: Threads,
    left: Cell<usize>,
}

impl Transport<SimDriver> for Mortal {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn ranks(&self) -> usize {
        self.rank.ranks()
    }

    unsafe fn start(&self, driver: &SimDriver, stream: &SimStream, all: &[Transfer]) -> Result<(), Error> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| Error::driver("start", None, "the end"))?;
        self.left.set(left);
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.start(driver, stream, all) }
    }

    unsafe fn finish(&self, driver: &SimDriver, stream: &SimStream) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.finish(driver, stream) }
    }

    unsafe fn clear(&self, driver: &SimDriver, of: &SimStream, start: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.clear(driver, of, start, bytes) }
    }

    unsafe fn copy(
        &self,
        driver: &SimDriver,
        of: &SimStream,
        from: Rows,
        to: Rows,
        shape: [u64; 2],
    ) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.copy(driver, of, from, to, shape) }
    }
}

/// A rank that ends, before or between its transfers, ends the others with an error, at once.
#[test]
fn a_lost_rank_ends_the_others() {
    let case = Case { ranks: 3, heads: [3, 3], lengths: &[30], ..CASE };
    let (chunks, Tensors { shapes, .. }) = (&Chunks::zigzag(30, 3).expect("chunks"), case.tensors());
    for (form, left) in Form::ALL.into_iter().flat_map(|form| [(form, 0), (form, 1)]) {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for (index, rank) in Threads::new(3, Duration::from_secs(600)).into_iter().enumerate() {
                scope.spawn(move || {
                    let tensors = [0, 0, 1, 2].map(|of| vec![0; shapes[of].iter().product()]);
                    let mut results = Results { tensors, lse: vec![0.0; 3 * 30] };
                    let rank = Mortal { rank, left: Cell::new(if index == 0 { left } else { usize::MAX }) };
                    let outcome = run((&case, form), chunks, &rank, index, &mut results);
                    let error = outcome.expect_err("rank 0 is lost").to_string();
                    let name = if index == 0 { "the end" } else { "has ended" };
                    assert!(error.contains(name), "{form:?}, {left}: {error}");
                });
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(60), "{form:?}, {left}: {:?}", begun.elapsed());
    }
}
