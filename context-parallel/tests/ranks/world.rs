//! Ranks that are threads with simulated cards: tensors, a call of each form, and the comparison with
//! attention of each whole sequence in f64.
use context_parallel::{Chunks, Comm, Form, Threads, Transport};
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask, Scratch, TensorView};
use ferroflash::{Attention, DType, Error};
use reference::{GradientReference, HostTensor, Inputs, Random, Reference, Upstream};
use std::ops::Range;
use std::time::Duration;

/// No test waits for this time.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Sequences on several ranks.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub card: &'static str,
    pub chunks: Chunks,
    pub batch: usize,
    pub lengths: Vec<usize>,
    pub heads: [usize; 2],
    pub head_dim: usize,
    pub dtype: DType,
    pub mask: Mask,
    pub softcap: f32,
    /// Whether the loss depends on the LSE.
    pub has_d_lse: bool,
}

impl Case {
    /// Returns a causal mask on two ranks.
    pub fn new(name: &str) -> Self {
        Case {
            name: name.into(),
            card: "a100",
            chunks: Chunks::zigzag(64, 2).expect("chunks"),
            batch: 1,
            lengths: vec![64],
            heads: [4, 2],
            head_dim: 64,
            dtype: DType::F16,
            mask: Mask::Causal,
            softcap: 0.0,
            has_d_lse: true,
        }
    }

    /// Cuts sequences into a zigzag.
    pub fn packed(self, lengths: &[usize], ranks: usize) -> Self {
        Case { chunks: Chunks::packed(lengths, ranks).expect("chunks"), lengths: lengths.to_vec(), ..self }
    }

    /// Cuts all sequences together into a chunk per rank.
    pub fn contiguous(self, lengths: &[usize], ranks: usize) -> Self {
        let chunks = Chunks::contiguous(lengths.iter().sum(), ranks).and_then(|all| all.sequences(lengths));
        Case { chunks: chunks.expect("chunks"), lengths: lengths.to_vec(), ..self }
    }
}

/// The tensors of all positions, `[batch, positions, heads, head_dim]`: Q, K, V and the gradient of O. The
/// gradient of the LSE is `[batch, heads, positions]`.
pub struct Tensors {
    pub bits: [Vec<u16>; 4],
    pub shapes: [[usize; 4]; 4],
    pub d_lse: Vec<f32>,
}

impl Case {
    pub fn positions(&self) -> usize {
        self.lengths.iter().sum()
    }

    pub fn tensors(&self) -> Tensors {
        let Case { batch, heads: [heads_q, heads_k], head_dim, .. } = *self;
        let positions = self.positions();
        let shapes = [heads_q, heads_k, heads_k, heads_q].map(|heads| [batch, positions, heads, head_dim]);
        let mut random = Random::new(1);
        let bits = shapes.map(|shape| random.normals(self.dtype, shape.iter().product()));
        let d_lse = (0..batch * heads_q * positions).map(|at| (at * 37 % 19) as f32 / 9.0 - 1.0).collect();
        Tensors { bits, shapes, d_lse }
    }

    /// Returns whether the library leaves states in f32: not of many sequences, which share launches.
    fn leaves_states(&self) -> bool {
        self.lengths.iter().filter(|length| **length > 0).count() < 3
    }

    /// Returns the problem of one sequence.
    fn problem(&self, positions: usize) -> Problem {
        let [heads_q, heads_k] = self.heads;
        let problem = Problem::new(self.dtype, self.batch, positions, heads_q, self.head_dim);
        problem.heads_k(heads_k).mask(self.mask).softcap(self.softcap)
    }
}

/// A rank: its card, and its rows of the tensors.
pub struct Rank<'a> {
    pub attention: Attention<SimDriver>,
    case: &'a Case,
    rank: usize,
    /// The request of both passes, without scratch memory.
    pub request: AttentionBackward<'static>,
    /// O, dQ, dK and dV.
    outputs: [SimBuffer; 4],
    lse: SimBuffer,
    _inputs: Vec<SimBuffer>,
}

/// O and the gradients of Q, K and V of some rows, and the LSE.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    pub tensors: [Vec<u16>; 4],
    pub lse: Vec<f32>,
}

/// The index of the tensor among [`Tensors`] whose shape an output has.
const SHAPES: [usize; 4] = [0, 0, 1, 2];

/// NaN in every type.
const POISON: u16 = 0x7fff;

/// Returns the elements of a rank's rows, `width` per row, of a tensor `[outer, positions, width]`.
fn places(case: &Case, rank: usize, outer: usize, width: usize) -> impl Iterator<Item = usize> + '_ {
    let of_row = move |row: usize| row * width..(row + 1) * width;
    let all = case.positions();
    let rows = move |index: usize| {
        case.chunks.of(rank).iter().cloned().flatten().map(move |position| index * all + position)
    };
    (0..outer).flat_map(rows).flat_map(of_row)
}

fn upload(driver: &SimDriver, bytes: impl Iterator<Item = u8>) -> Result<SimBuffer, Error> {
    let bytes: Vec<u8> = bytes.collect();
    let mut buffer = driver.allocate(bytes.len().max(16))?;
    driver.upload_at(&mut buffer, 0, &bytes)?;
    Ok(buffer)
}

fn download<const N: usize>(
    driver: &SimDriver,
    from: &SimBuffer,
    count: usize,
) -> Result<Vec<[u8; N]>, Error> {
    let mut bytes = vec![0; count * N];
    driver.download_at(from, 0, &mut bytes)?;
    Ok(bytes.as_chunks().0.to_vec())
}

impl<'a> Rank<'a> {
    pub fn new(case: &'a Case, rank: usize) -> Result<Self, Error> {
        let attention = Attention::new(SimDriver::new(case.card)?);
        let driver = attention.driver();
        let Tensors { bits, shapes, d_lse } = case.tensors();
        let rows = case.chunks.rows(rank);
        let view = |buffer: &SimBuffer, [batch, _, heads, columns]: [usize; 4]| {
            let elements = (batch * rows * heads * columns) as u64;
            TensorView::bshd(driver.address(buffer), elements, case.dtype, [batch, rows, heads, columns])
        };
        let input = |of: usize| {
            let [batch, _, heads, columns] = shapes[of];
            let own = places(case, rank, batch, heads * columns).flat_map(|at| bits[of][at].to_le_bytes());
            let buffer = upload(driver, own)?;
            Ok::<_, Error>((view(&buffer, shapes[of]), buffer))
        };
        let output = |of: usize| {
            let [batch, _, heads, columns] = shapes[of];
            let poison = std::iter::repeat_n(POISON, batch * rows * heads * columns);
            let buffer = upload(driver, poison.flat_map(u16::to_le_bytes))?;
            Ok::<_, Error>((view(&buffer, shapes[of]), buffer))
        };
        let [batch, _, heads, _] = shapes[0];
        let of_rows = |value: &dyn Fn(usize) -> f32| {
            let values = places(case, rank, batch * heads, 1).map(value);
            let buffer = upload(driver, values.flat_map(f32::to_le_bytes))?;
            let count = (batch * heads * rows) as u64;
            let view = LseView::contiguous(driver.address(&buffer), count, [batch, heads, rows]);
            Ok::<_, Error>((view, buffer))
        };
        let ((q, q_memory), (k, k_memory), (v, v_memory)) = (input(0)?, input(1)?, input(2)?);
        let ((d_o, d_o_memory), (o, o_memory)) = (input(3)?, output(SHAPES[0])?);
        let ((dq, dq_memory), (dk, dk_memory)) = (output(SHAPES[1])?, output(SHAPES[2])?);
        let (dv, dv_memory) = output(SHAPES[3])?;
        let (lse, lse_memory) = of_rows(&|_| f32::NAN)?;
        let (d_lse, d_lse_memory) = of_rows(&|at| d_lse[at])?;
        let forward = AttentionRequest::dense(q, k, v, o).mask(case.mask).softcap(case.softcap).lse(lse);
        let mut request = AttentionBackward::new(forward, d_o, dq, dk, dv);
        request.d_lse = case.has_d_lse.then_some(d_lse);
        Ok(Rank {
            case,
            rank,
            request,
            outputs: [o_memory, dq_memory, dk_memory, dv_memory],
            lse: lse_memory,
            _inputs: vec![q_memory, k_memory, v_memory, d_o_memory, d_lse_memory],
            attention,
        })
    }

    /// Runs both passes.
    pub fn run(&self, form: Form, transport: &impl Transport<SimDriver>) -> Result<(), Error> {
        let (driver, chunks) = (self.attention.driver(), &self.case.chunks);
        let comm = Comm::new(&self.attention, transport, &SimStream);
        let forward = self.request.forward;
        let bytes = form.attention_workspace(&comm, chunks, &forward)?;
        let workspace = driver.allocate(bytes as usize)?;
        let scratch = Scratch::workspace(driver.address(&workspace), bytes);
        // SAFETY: the simulator checks every access.
        unsafe { form.attention(&comm, chunks, &forward.scratch(scratch))? };
        let bytes = form.backward_workspace(&comm, chunks, &self.request)?;
        let workspace = driver.allocate(bytes as usize)?;
        let scratch = Scratch::workspace(driver.address(&workspace), bytes);
        // SAFETY: as above.
        unsafe { form.backward(&comm, chunks, &self.request.scratch(scratch))? };
        driver.synchronize(&SimStream)
    }

    /// Writes the rank's rows of the results.
    fn results(&self, to: &mut Results) -> Result<(), Error> {
        let Rank { case, rank, .. } = *self;
        let driver = self.attention.driver();
        let shapes = case.tensors().shapes;
        for ((buffer, to), of) in self.outputs.iter().zip(&mut to.tensors).zip(SHAPES) {
            let [batch, _, heads, columns] = shapes[of];
            let own = download(driver, buffer, batch * case.chunks.rows(rank) * heads * columns)?;
            let places = places(case, rank, batch, heads * columns);
            places.zip(own).for_each(|(at, x)| to[at] = u16::from_le_bytes(x));
        }
        let outer = case.batch * case.heads[0];
        let own = download(driver, &self.lse, outer * case.chunks.rows(rank))?;
        places(case, rank, outer, 1).zip(own).for_each(|(at, x)| to.lse[at] = f32::from_le_bytes(x));
        Ok(())
    }
}

/// Runs a function on each rank, as threads, and returns what they return.
pub fn on_ranks<R: Send>(transports: Vec<Threads>, of: impl Fn(usize, Threads) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let of = &of;
        let spawn = |(rank, transport): (usize, Threads)| scope.spawn(move || of(rank, transport));
        let all: Vec<_> = transports.into_iter().enumerate().map(spawn).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs all ranks, and returns the results of all positions.
pub fn all(case: &Case, form: Form) -> Result<Results, Error> {
    let shapes = case.tensors().shapes;
    let elements = |of: usize| vec![POISON; shapes[of].iter().product()];
    let lse = vec![f32::NAN; case.batch * case.heads[0] * case.positions()];
    let mut results = Results { tensors: SHAPES.map(elements), lse };
    let ranks = on_ranks(Threads::new(case.chunks.ranks(), LIMIT), |rank, transport| {
        let of = Rank::new(case, rank)?;
        of.run(form, &transport).map(|()| of)
    });
    ranks.into_iter().try_for_each(|of| of?.results(&mut results))?;
    Ok(results)
}

/// Returns the elements of one sequence's positions, of a tensor `[outer, positions, width]`.
fn part<T: Copy>(all: &[T], positions: usize, of: &Range<usize>, width: usize) -> Vec<T> {
    let outer = all.chunks(positions * width);
    outer.flat_map(|all| &all[of.start * width..of.end * width]).copied().collect()
}

fn view((bits, shape): &(Vec<u16>, [usize; 4]), dtype: DType) -> HostTensor<'_> {
    HostTensor::bshd(bits, dtype, *shape).expect("a tensor")
}

/// Compares results with those of each sequence.
pub fn judge(case: &Case, form: Form, results: &Results) {
    let name = format!("{}, {form:?}", case.name);
    let Tensors { bits, shapes, d_lse } = case.tensors();
    let positions = case.positions();
    let dtype = case.dtype;
    let mut end = 0;
    for length in case.lengths.iter().filter(|length| **length > 0) {
        let of = end..end + length;
        end = of.end;
        let host = |bits: &[u16], [batch, _, heads, columns]: [usize; 4]| {
            let bits = part(bits, positions, &of, heads * columns);
            (bits, [batch, *length, heads, columns])
        };
        let own = [0, 1, 2, 3].map(|of| host(&bits[of], shapes[of]));
        let [q, k, v, d_o] = own.each_ref().map(|of| view(of, dtype));
        let inputs = Inputs::new(case.problem(*length), q, k, v).expect("inputs");
        let own = [0, 1, 2, 3].map(|of| host(&results.tensors[of], shapes[SHAPES[of]]));
        let [o, dq, dk, dv] = own.each_ref().map(|of| view(of, dtype));
        let (lse, d_lse) = (part(&results.lse, positions, &of, 1), part(&d_lse, positions, &of, 1));
        let reference = Reference::new(&inputs);
        // Only a ring merges results, and rounds them before if the library leaves no states in f32.
        let is_rounded = form == Form::Ring && !case.leaves_states();
        let reference = if is_rounded { reference.of_merged_states(&inputs, 1.0) } else { reference };
        let verdict = reference.judge(&o, Some(&lse)).expect("of one shape");
        let failures: Vec<_> = verdict.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:?}");
        let d_lse = case.has_d_lse.then_some(&d_lse[..]);
        let reference = GradientReference::new(&inputs, &Upstream { d_o, d_lse });
        for worst in reference.judge([Some(&dq), Some(&dk), Some(&dv)], [None, None]) {
            assert!(worst.passed(), "{name}: {worst:?}");
        }
    }
}
