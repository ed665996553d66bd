//! Problems in host memory, laid out as in device memory.
use super::alibi::Slopes;
use super::arithmetic::encode;
use super::attention::{Inputs, Outputs};
use super::cycled;
use super::extras::Extras;
use super::inputs::Random;
use super::sequences::Sequences;
use super::tensor::{HostTensor, TensorError};
use super::told::Told;
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionRequest, LseView, Scores, TensorView};

/// The scaled score of a huge key. Its exponential is so large that f32 rounding removes all earlier sums.
pub const PEAK: f64 = 40.0;

/// Memory layout of a problem's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch][seqlen][heads][head_dim]`, one buffer per tensor.
    Bshd,
    /// `[batch][heads][seqlen][head_dim]`, one buffer per tensor.
    Bhsd,
    /// A row of one buffer holds the heads of Q, K and V side by side if `seqlen_q` equals `seqlen_k`;
    /// otherwise only K and V share a buffer. In O, 8 elements between two rows belong to no row.
    Packed,
}

impl Layout {
    /// Returns the layout's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Bshd => "bshd",
            Layout::Bhsd => "bhsd",
            Layout::Packed => "packed",
        }
    }
}

/// The position of a tensor in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: usize,
    /// The index in the buffer of the tensor's first element.
    pub offset: usize,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Strides of batch, row, head and column, in elements.
    pub strides: [i64; 4],
}

impl Place {
    /// Returns the number of elements from the first to the last element, both included.
    pub fn span(&self) -> usize {
        1 + self
            .shape
            .iter()
            .zip(self.strides)
            .map(|(size, stride)| (size - 1) * stride as usize)
            .sum::<usize>()
    }

    /// Returns the index of the element where row `index` starts. Rows are counted as
    /// `[batch][seqlen][heads]`.
    pub fn row(&self, index: usize) -> usize {
        let [_, rows, heads, _] = self.shape;
        let position = [index / (rows * heads), index / heads % rows, index % heads];
        self.offset + position.iter().zip(self.strides).map(|(i, stride)| i * stride as usize).sum::<usize>()
    }

    /// Returns the place of a tensor that fills its own buffer. `Packed` leaves 8 elements between rows.
    fn alone(buffer: usize, layout: Layout, shape: [usize; 4]) -> Self {
        let [_, rows, heads, head_dim] = shape.map(|size| size as i64);
        let gap = if layout == Layout::Packed { 8 } else { 0 };
        let strides = match layout {
            Layout::Bhsd => [heads * rows * head_dim, head_dim, rows * head_dim, 1],
            _ => [rows * (heads * head_dim + gap), heads * head_dim + gap, head_dim, 1],
        };
        Place { buffer, offset: 0, shape, strides }
    }

    /// Returns the places of tensors that share a buffer. A row of the buffer holds the heads of all of them.
    fn side_by_side<const N: usize>(buffer: usize, shapes: [[usize; 4]; N]) -> [Self; N] {
        let row: usize = shapes.iter().map(|[_, _, heads, columns]| heads * columns).sum();
        let mut first = 0;
        shapes.map(|shape| {
            let [_, rows, heads, columns] = shape;
            let strides = [rows * row, row, columns, 1].map(|elements| elements as i64);
            let place = Place { buffer, offset: first, shape, strides };
            first += heads * columns;
            place
        })
    }
}

/// A problem with its inputs, one `Vec` per buffer.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The problem.
    pub problem: Problem,
    /// Buffers of the inputs.
    pub buffers: Vec<Vec<u16>>,
    /// Queries.
    pub q: Place,
    /// Keys.
    pub k: Place,
    /// Values.
    pub v: Place,
    /// The output. `buffers` does not contain the output's buffer.
    pub o: Place,
    /// ALiBi slopes. The first buffer behind the tensors' buffers holds the slopes.
    pub slopes: Option<Slopes>,
    /// The sequences of a varlen batch. The last buffers hold the integers of these sequences.
    pub sequences: Option<Sequences>,
    /// The integers in device memory, one entry per launch of one plan. The first entry is [`Told::Filled`].
    pub told: Vec<Told>,
    /// Sinks, bias and masks. Their buffers follow `buffers`.
    pub extras: Extras,
}

/// Splits 32-bit words into the 16-bit elements of a buffer.
fn halves(words: impl Iterator<Item = u32>) -> Vec<u16> {
    let halves = |x: u32| x.to_ne_bytes().as_chunks().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
    words.flat_map::<Vec<_>, _>(halves).collect()
}

impl Memory {
    /// Returns standard normal inputs from `seed`, with random extras. If the problem has ALiBi, slopes are
    /// at most 1/2.
    pub fn random(problem: Problem, layout: Layout, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let memory = Self::filled(problem, layout, |len| random.normals(problem.dtype, len));
        let memory = Memory { extras: Extras::random(&problem, seed), ..memory };
        match problem.alibi {
            true => memory.with_slopes(Slopes::random(seed, problem.batch, problem.heads_q, -1)),
            false => memory,
        }
    }

    /// Adds these ALiBi slopes.
    #[must_use]
    pub fn with_slopes(mut self, slopes: Slopes) -> Self {
        let bits = halves(slopes.values().iter().map(|x| x.to_bits()));
        self.buffers.insert(self.tensor_buffers(), bits);
        (self.problem.alibi, self.slopes) = (true, Some(slopes));
        self
    }

    /// Replaces the extras.
    #[must_use]
    pub fn with_extras(self, extras: Extras) -> Self {
        Memory { problem: extras.of(self.problem), extras, ..self }
    }

    /// Gives every sixteenth row of each head one huge key. The row's scaled score with this key is [`PEAK`],
    /// and other rows score 0 with the key. The head's index determines these rows. The head's index and the
    /// row determine the block of `block` keys that contains the huge key. Sixteen heads per key block cover
    /// all rows and key blocks.
    #[must_use]
    pub fn with_peaks(mut self, block: usize) -> Self {
        let Problem { dtype, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, .. } = self.problem;
        let scale = self.problem.scale.map_or((head_dim as f64).sqrt().recip(), f64::from);
        let (high, zero) = (encode(dtype, (PEAK / scale).sqrt()), encode(dtype, 0.0));
        let columns = seqlen_q.div_ceil(16).min(head_dim);
        let (q, k) = (self.q, self.k);
        let mut set = |place: &Place, index: usize, column: usize, bits: u16| {
            self.buffers[place.buffer][place.row(index) + column] = bits;
        };
        let rows = |len: usize, heads: usize| batch * len * heads;
        for (place, count) in [(&q, rows(seqlen_q, heads_q)), (&k, rows(seqlen_k, heads_k))] {
            (0..count).for_each(|index| (0..columns).for_each(|column| set(place, index, column, zero)));
        }
        for head in 0..heads_q {
            for (column, row) in (head % 16..seqlen_q).step_by(16).enumerate().take(columns) {
                let first = (column + head / 16) % seqlen_k.div_ceil(block) * block;
                let key = first + (7 * row + 3 * head) % block.min(seqlen_k - first);
                for n in 0..batch {
                    set(&q, (n * seqlen_q + row) * heads_q + head, column, high);
                    set(&k, (n * seqlen_k + key) * heads_k + head * heads_k / heads_q, column, high);
                }
            }
        }
        self
    }

    /// Makes the problem a varlen batch. Adds one buffer for each array of integers.
    #[must_use]
    pub fn with_sequences(mut self, sequences: Sequences) -> Self {
        let bits = |(_, array): (_, &Vec<i32>)| halves(array.iter().map(|x| *x as u32));
        self.buffers.extend(sequences.arrays().map(bits));
        self.sequences = Some(sequences);
        self
    }

    /// Fills the rows that no sequence uses with NaN.
    #[must_use]
    pub fn with_poison(mut self) -> Self {
        let Some(sequences) = &self.sequences else { return self };
        let [[_, rows_q, ..], [_, rows_k, ..], ..] = self.problem.shapes();
        let mut unused = [rows_q, rows_k].map(|rows| vec![true; rows]);
        for sequence in 0..sequences.count() {
            unused[0][sequences.queries(sequence)].fill(false);
            unused[1][sequences.keys(sequence)].fill(false);
        }
        let nobody = encode(self.problem.dtype, f64::NAN);
        for (place, unused) in [(self.q, &unused[0]), (self.k, &unused[1]), (self.v, &unused[1])] {
            let [_, _, heads, head_dim] = place.shape;
            for row in unused.iter().enumerate().filter(|(_, unused)| **unused).map(|(row, _)| row) {
                for head in 0..heads {
                    self.buffers[place.buffer][place.row(row * heads + head)..][..head_dim].fill(nobody);
                }
            }
        }
        self
    }

    /// Returns the problem with the integers that device memory holds during a launch.
    pub(super) fn told(&self, told: Told) -> Self {
        let sequences = self.sequences.as_ref().map(|sequences| sequences.told(told));
        Memory { sequences, ..self.clone() }
    }

    /// Fills the input buffers. `fill` receives a number of elements and returns the elements.
    pub fn filled(problem: Problem, layout: Layout, mut fill: impl FnMut(usize) -> Vec<u16>) -> Self {
        let mut memory = Self::places(problem, layout);
        let (places, buffers) = ([memory.q, memory.k, memory.v], memory.tensor_buffers());
        let len = |buffer| {
            let ends =
                places.iter().filter(|place| place.buffer == buffer).map(|place| place.offset + place.span());
            ends.max().unwrap_or(0)
        };
        memory.buffers = (0..buffers).map(|buffer| fill(len(buffer))).collect();
        memory
    }

    /// Returns inputs for a measurement: elements repeat with a long period, because that is fast to
    /// generate.
    pub fn to_measure(problem: Problem, layout: Layout) -> Self {
        let mut tensor = 0..;
        Self::filled(problem, layout, |len| cycled::halves(problem.dtype, tensor.next().unwrap_or(0), len))
    }

    /// Lays out given inputs. Each input is contiguous in `layout`, which must not be [`Layout::Packed`].
    ///
    /// # Errors
    /// Returns [`TensorError`] if a tensor is shorter than the problem needs.
    pub fn contiguous(problem: Problem, layout: Layout, qkv: [Vec<u16>; 3]) -> Result<Self, TensorError> {
        let memory = Memory { buffers: qkv.into(), ..Self::places(problem, layout) };
        for place in [memory.q, memory.k, memory.v] {
            memory.tensor(place)?;
        }
        Ok(memory)
    }

    /// Returns the number of buffers of Q, K and V. These buffers come first.
    pub(super) fn tensor_buffers(&self) -> usize {
        1 + [self.q, self.k, self.v].iter().map(|place| place.buffer).max().unwrap_or(0)
    }

    /// Returns the index of the first buffer of integers. This buffer follows the buffers of tensors and
    /// slopes.
    pub(super) fn first_array(&self) -> usize {
        self.tensor_buffers() + usize::from(self.slopes.is_some())
    }

    /// Returns the name of each buffer.
    pub fn names(&self) -> Vec<String> {
        let places = [("q", self.q), ("k", self.k), ("v", self.v)];
        let tensors = (0..self.tensor_buffers()).map(|buffer| {
            places.iter().filter(|(_, place)| place.buffer == buffer).map(|(name, _)| *name).collect()
        });
        let arrays = self.sequences.iter().flat_map(Sequences::arrays).map(|(name, _)| name.to_owned());
        tensors.chain(self.slopes.iter().map(|_| "alibi_slopes".into())).chain(arrays).collect()
    }

    /// Returns the expected LSE of all rows; -inf for rows that belong to no sequence.
    pub fn place_lse(&self, outputs: &Outputs) -> Vec<f32> {
        let ([_, all, ..], [_, rows, ..]) = (self.o.shape, self.written().shape);
        let mut lse = vec![f32::NEG_INFINITY; self.lse_shape().iter().product()];
        let heads = lse.chunks_mut(all).zip(outputs.lse.chunks(rows.max(1)));
        heads.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as f32));
        lse
    }

    /// Returns the rows of O that the kernel writes. In a varlen batch, these are the first rows, up to the
    /// end of the last sequence.
    pub fn written(&self) -> Place {
        let [batches, rows, heads, head_dim] = self.o.shape;
        let rows = self.sequences.as_ref().map_or(rows, Sequences::rows);
        Place { shape: [batches, rows, heads, head_dim], ..self.o }
    }

    /// Returns the LSE of the rows that [`Memory::written`] describes.
    pub fn written_lse(&self, lse: &[f32]) -> Vec<f32> {
        let ([_, all, ..], [_, rows, ..]) = (self.o.shape, self.written().shape);
        lse.chunks(all).flat_map(|head| &head[..rows]).copied().collect()
    }

    /// Sets the rows that belong to no sequence to O = 0 and LSE = -inf, like rows that see no key.
    pub fn clear_unwritten(&self, o: &mut [u16], lse: &mut [f32]) {
        let ([batches, all, heads, head_dim], [_, rows, ..]) = (self.o.shape, self.written().shape);
        for row in (0..batches * all).filter(|row| row % all >= rows) {
            (0..heads).for_each(|head| o[self.o.row(row * heads + head)..][..head_dim].fill(0));
        }
        lse.chunks_mut(all).for_each(|head| head[rows..].fill(f32::NEG_INFINITY));
    }

    /// Returns the shape of LSE: `[batch, heads, seqlen]`.
    pub fn lse_shape(&self) -> [usize; 3] {
        let [batches, rows, heads, _] = self.o.shape;
        [batches, heads, rows]
    }

    /// Returns the request in device memory. Copies of `buffers` are at `inputs`, O is at `o`, and a
    /// contiguous LSE is at `lse`.
    pub fn forward(&self, inputs: &[u64], o: u64, lse: u64) -> AttentionRequest<'static> {
        let Problem { dtype, mask, alignment, scale, softcap, .. } = self.problem;
        let view = |base: u64, place: Place, elements: usize| {
            let address = base + (place.offset * dtype.bytes()) as u64;
            TensorView::new(address, elements as u64, dtype, place.shape, place.strides)
        };
        let input = |place: Place| {
            view(inputs[place.buffer], place, self.buffers[place.buffer].len().saturating_sub(place.offset))
        };
        let lse_shape = self.lse_shape();
        let lse = LseView::contiguous(lse, lse_shape.iter().product::<usize>() as u64, lse_shape);
        let mut integers = &inputs[self.tensor_buffers()..];
        let mut scores = Scores::new().softcap(softcap.unwrap_or_default());
        scores.scale = scale;
        if let (Some(slopes), [address, others @ ..]) = (&self.slopes, integers) {
            (scores.alibi, integers) = (Some(slopes.view(*address)), others);
        }
        let [q, k, v] = [self.q, self.k, self.v].map(input);
        let o = view(o, self.o, self.o.span());
        let forward = match &self.sequences {
            None => AttentionRequest::dense(q, k, v, o),
            Some(sequences) => {
                let (queries, keys) = sequences.varlen(&self.problem, integers);
                AttentionRequest::varlen(q, k, v, o, queries, keys)
            }
        };
        let mut forward = forward.mask(mask).alignment(alignment).scores(scores).lse(lse);
        self.extras.give(&mut forward, inputs.get(self.buffers.len()..).unwrap_or_default());
        forward
    }

    /// Returns O of `outputs`, rounded and laid out as [`Memory::o`] says.
    pub fn place(&self, outputs: &Outputs) -> Vec<u16> {
        let mut bits = vec![0; self.o.span()];
        let [batches, rows, heads, head_dim] = self.o.shape;
        let rounded = outputs.out_bits(self.problem.dtype);
        for (index, row) in rounded.chunks(head_dim).enumerate().take(batches * rows * heads) {
            bits[self.o.row(index)..][..head_dim].copy_from_slice(row);
        }
        bits
    }

    fn places(problem: Problem, layout: Layout) -> Self {
        let [q, k, v, o] = problem.shapes();
        let (o, told) = (Place::alone(0, layout, o), vec![Told::Filled]);
        let [q, k, v] = match layout {
            Layout::Packed if q[1] == k[1] => Place::side_by_side(0, [q, k, v]),
            Layout::Packed => {
                let [k, v] = Place::side_by_side(1, [k, v]);
                [Place::alone(0, Layout::Bshd, q), k, v]
            }
            alone => [(0, q), (1, k), (2, v)].map(|(buffer, shape)| Place::alone(buffer, alone, shape)),
        };
        let (buffers, extras) = (vec![], Extras::default());
        Memory { problem, buffers, q, k, v, o, slopes: None, sequences: None, told, extras }
    }

    /// Returns the problem's inputs for the reference.
    ///
    /// # Errors
    /// Returns [`TensorError`] if a buffer is too short, or if the number of query heads is not a multiple of
    /// the number of key heads.
    pub fn inputs(&self) -> Result<Inputs<'_>, TensorError> {
        let inputs =
            Inputs::new(self.problem, self.tensor(self.q)?, self.tensor(self.k)?, self.tensor(self.v)?)?;
        Ok(inputs.packed(self.sequences.as_ref()).alibi(self.slopes.as_ref(), 0).extras(&self.extras, [0; 2]))
    }

    fn tensor(&self, place: Place) -> Result<HostTensor<'_>, TensorError> {
        HostTensor::new(
            &self.buffers[place.buffer],
            place.offset,
            self.problem.dtype,
            place.shape,
            place.strides,
        )
    }
}
