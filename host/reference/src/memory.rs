//! Problems in host memory, laid out as in device memory.
use super::arithmetic::encode;
use super::attention::{Inputs, Outputs};
use super::case::{Case, Pages};
use super::cycled;
use super::device_lengths::DeviceLengths;
use super::extras::Extras;
use super::inputs::Random;
use super::place::{Layout, Place};
use super::sequences::Sequences;
use super::tensor::{HostTensor, TensorError};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::RowOutputs;
use ferroflash::variant::WithVariant;

mod cache;
mod judge;
mod loaded;
mod outcome;
mod padded;
mod work;

pub use loaded::Loaded;
pub use outcome::Outcome;

pub(super) use cache::Cache;

/// The scaled score of a huge key. Its exponential is so large that f32 rounding removes all earlier sums.
pub const PEAK: f64 = 40.0;

/// A problem with its inputs, one `Vec` per buffer.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The problem.
    pub problem: Problem,
    /// Buffers of Q, and of K and V unless they lie on a cache.
    pub buffers: Vec<Vec<u16>>,
    /// Queries.
    pub q: Place,
    /// Keys; the pages `[pages, page, heads, columns]` of a cache. Buffer 1 is the cache's first buffer.
    pub k: Place,
    /// Values; the pages of a cache.
    pub v: Place,
    /// The output. `buffers` does not contain the output's buffer.
    pub o: Place,
    /// Slopes, sinks, bias and masks.
    pub extras: Extras,
    /// The sequences of varlen tensors.
    pub sequences: Option<Sequences>,
    /// The caller's mask and scores.
    pub variant: Option<WithVariant>,
    /// The outputs of rows that launches write.
    pub rows: RowOutputs<bool>,
    /// See [`Case::head_maxima`].
    pub head_maxima: bool,
    /// See [`Case::padded`].
    pub padded: bool,
    /// The cache of keys and values.
    pub(super) cache: Option<Cache>,
    /// The integers in device memory, one entry per launch of one plan. The first entry is
    /// [`DeviceLengths::Filled`].
    pub device_lengths: Vec<DeviceLengths>,
}

impl Case {
    /// Draws the case's tensors.
    pub fn memory(&self) -> Memory {
        let Pages::Tensors(layout) = self.pages else { return Cache::draw(self) };
        let memory = self.in_sequences(Memory::random(self.problem(), layout, self.seed));
        let memory = self.score.into_iter().fold(memory, Memory::with_score);
        let block = self.peaks.map(|block| block as usize);
        block.into_iter().fold(memory, Memory::with_peaks).with_poison()
    }

    /// Makes inputs for a measurement. The elements repeat with a long period, because the generation of
    /// gigabytes must be fast.
    pub fn to_measure(&self) -> Memory {
        let Pages::Tensors(layout) = self.pages else { return Cache::cycle(self) };
        let problem = self.problem();
        let fill = |buffer, len| cycled::halves(problem.dtype, buffer, len);
        let memory = Memory::filled(problem, Memory::places(problem, layout), fill);
        self.in_sequences(memory.with_random_extras(self.seed))
    }

    fn in_sequences(&self, memory: Memory) -> Memory {
        Memory {
            device_lengths: self.device_lengths.clone(),
            sequences: self.sequences(),
            rows: self.rows,
            head_maxima: self.head_maxima,
            padded: self.padded,
            ..memory
        }
    }
}

impl Memory {
    /// Returns standard normal inputs from `seed`, with random extras. If the problem has ALiBi, slopes are
    /// at most 1/2.
    pub fn random(problem: Problem, layout: Layout, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let fill = |_, len| random.normals(problem.dtype, len);
        Self::filled(problem, Self::places(problem, layout), fill).with_random_extras(seed)
    }

    fn with_random_extras(self, seed: u64) -> Self {
        Memory { extras: Extras::random(&self.problem, seed), ..self }
    }

    /// Replaces the extras.
    #[must_use]
    pub fn with_extras(self, extras: Extras) -> Self {
        Memory { problem: extras.of(self.problem), extras, ..self }
    }

    /// Makes the problem a varlen batch.
    #[must_use]
    pub fn with_sequences(self, sequences: Sequences) -> Self {
        Memory { sequences: Some(sequences), ..self }
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

    /// Gives every query this scaled score with every key. The score is not above 0.
    #[must_use]
    pub fn with_score(mut self, score: f32) -> Self {
        let Problem { dtype, head_dim, .. } = self.problem;
        let x = (f64::from(-score) / f64::from(self.problem.softmax_scale()) / head_dim as f64).sqrt();
        for (place, x) in [(self.q, x), (self.k, -x)] {
            place.elements().for_each(|at| self.buffers[place.buffer][at] = encode(dtype, x));
        }
        self
    }

    /// Fills the rows of varlen tensors that no sequence uses with NaN.
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

    /// Returns tensors in these places.
    fn in_places(problem: Problem, buffers: Vec<Vec<u16>>, [q, k, v, o]: [Place; 4]) -> Self {
        let (extras, device_lengths) = (Extras::default(), vec![DeviceLengths::Filled]);
        let (sequences, variant, cache) = (None, None, None);
        Memory {
            problem,
            buffers,
            q,
            k,
            v,
            o,
            extras,
            sequences,
            variant,
            rows: RowOutputs::LSE,
            head_maxima: false,
            padded: false,
            cache,
            device_lengths,
        }
    }

    /// Returns tensors in these places. `fill` receives the index of a buffer and its number of elements, and
    /// returns the elements.
    pub(super) fn filled(
        problem: Problem,
        places: [Place; 4],
        mut fill: impl FnMut(usize, usize) -> Vec<u16>,
    ) -> Self {
        let inputs = &places[..3];
        let len = |buffer| {
            let own = inputs.iter().filter(|place| place.buffer == buffer);
            own.map(|place| place.offset + place.span()).max().unwrap_or(0)
        };
        let last = inputs.iter().map(|place| place.buffer).max().unwrap_or(0);
        let buffers = (0..=last).map(|buffer| fill(buffer, len(buffer))).collect();
        Self::in_places(problem, buffers, places)
    }

    /// Lays out given inputs. Each input is contiguous in `layout`, which must not be [`Layout::Packed`].
    ///
    /// # Errors
    /// Returns [`TensorError`] if a tensor is shorter than the problem needs.
    pub fn contiguous(problem: Problem, layout: Layout, qkv: [Vec<u16>; 3]) -> Result<Self, TensorError> {
        let memory = Self::in_places(problem, qkv.into(), Self::places(problem, layout));
        memory.tensors()?;
        Ok(memory)
    }

    /// Returns the places of Q, K, V and O in a layout.
    fn places(problem: Problem, layout: Layout) -> [Place; 4] {
        let [q, k, v, o] = problem.shapes();
        let o = Place::alone(0, layout, o);
        let [q, k, v] = match layout {
            Layout::Packed if q[1] == k[1] => Place::side_by_side(0, [q, k, v]),
            Layout::Packed => {
                let [k, v] = Place::side_by_side(1, [k, v]);
                [Place::alone(0, Layout::Bshd, q), k, v]
            }
            alone => [(0, q), (1, k), (2, v)].map(|(buffer, shape)| Place::alone(buffer, alone, shape)),
        };
        [q, k, v, o]
    }

    /// Returns the expected outputs of rows that launches write; -inf for rows that belong to no sequence.
    pub fn place_rows(&self, outputs: &Outputs) -> RowOutputs<Option<Vec<f32>>> {
        let ([_, all, ..], [_, rows, ..]) = (self.o.shape, self.written().shape);
        let placed = |values: &[f64]| {
            let mut placed = vec![f32::NEG_INFINITY; self.lse_shape().iter().product()];
            let heads = placed.chunks_mut(all).zip(values.chunks(rows.max(1)));
            heads.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as f32));
            placed
        };
        self.rows.zip(outputs.rows()).map(|_, (wanted, values)| wanted.then(|| placed(values)))
    }

    /// Returns the largest of the values of each head's rows.
    pub fn largest_of_heads(&self, values: &[f32]) -> Vec<f32> {
        let [_, heads, rows] = self.lse_shape();
        let of_head = |head: usize| values.chunks(rows.max(1)).skip(head).step_by(heads).flatten();
        (0..heads).map(|head| of_head(head).copied().fold(f32::NEG_INFINITY, f32::max)).collect()
    }

    /// Returns the rows of O that the kernel writes. In a varlen batch, these are the first rows, up to the
    /// end of the last sequence.
    pub fn written(&self) -> Place {
        let [batches, _, heads, head_dim] = self.o.shape;
        Place { shape: [batches, self.rows_written(DeviceLengths::Filled), heads, head_dim], ..self.o }
    }

    /// Returns the values, such as the LSE, of the rows that [`Memory::written`] describes.
    pub fn written_values(&self, values: &[f32]) -> Vec<f32> {
        let ([_, all, ..], [_, rows, ..]) = (self.o.shape, self.written().shape);
        values.chunks(all).flat_map(|head| &head[..rows]).copied().collect()
    }

    /// Sets the rows that belong to no sequence to O = 0 and to values of -inf, like rows that see no key.
    pub fn clear_unwritten(&self, o: &mut [u16], values: &mut RowOutputs<Option<Vec<f32>>>) {
        let ([batches, all, heads, head_dim], [_, rows, ..]) = (self.o.shape, self.written().shape);
        for row in (0..batches * all).filter(|row| row % all >= rows) {
            (0..heads).for_each(|head| o[self.o.row(row * heads + head)..][..head_dim].fill(0));
        }
        for values in values.as_mut().named().filter_map(|(_, values)| values.as_mut()) {
            values.chunks_mut(all).for_each(|head| head[rows..].fill(f32::NEG_INFINITY));
        }
    }

    /// Returns the shape of LSE: `[batch, heads, seqlen]`.
    pub fn lse_shape(&self) -> [usize; 3] {
        let [batches, rows, heads, _] = self.o.shape;
        [batches, heads, rows]
    }

    /// Returns O of `outputs`, rounded and laid out as [`Memory::o`] says.
    pub fn place(&self, outputs: &Outputs) -> Vec<u16> {
        let mut bits = vec![0; self.o.span()];
        let [batches, rows, heads, head_dim] = self.o.shape;
        let rounded = outputs.out_bits(self.problem.o_dtype);
        for (index, row) in rounded.chunks(head_dim).enumerate().take(batches * rows * heads) {
            bits[self.o.row(index)..][..head_dim].copy_from_slice(row);
        }
        bits
    }

    /// Returns the inputs of a problem on tensors for the reference.
    ///
    /// # Errors
    /// Returns [`TensorError`] if a buffer is too short, if keys lie on a cache, or if the number of query
    /// heads is not a multiple of the number of key heads.
    pub fn inputs(&self) -> Result<Inputs<'_>, TensorError> {
        let [q, k, v] = self.tensors()?;
        let inputs = Inputs::new(self.problem, q, k, v)?.varlen(self.sequences.as_ref());
        Ok(inputs.extras(&self.extras, [0; 2]))
    }

    /// Returns Q, K and V in `buffers`.
    fn tensors(&self) -> Result<[HostTensor<'_>; 3], TensorError> {
        let kv = |place| self.tensor(place, self.problem.kv_dtype);
        let [q, k, v] = [self.tensor(self.q, self.problem.dtype)?, kv(self.k)?, kv(self.v)?];
        let Some([of_q, of_k, of_v]) = &self.extras.descales else { return Ok([q, k, v]) };
        let group = self.problem.heads_q / self.problem.heads_k.max(1);
        Ok([q.of_groups(of_q, group)?, k.of_groups(of_k, 1)?, v.of_groups(of_v, 1)?])
    }

    /// Returns a tensor of `buffers`. The buffers of a cache are not among them.
    fn tensor(&self, place: Place, dtype: DType) -> Result<HostTensor<'_>, TensorError> {
        let (bits, Place { offset, shape, strides, .. }) = (self.buffers.get(place.buffer), place);
        HostTensor::new(bits.map_or(&[], |bits| bits), offset, dtype, shape, strides)
    }
}
