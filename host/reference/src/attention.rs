//! Attention, written once for every arithmetic.
use super::arithmetic::{Arithmetic, Exact, NaiveBf16, NaiveF16, Real, encode};
use super::extras::{BiasTensor, Extras};
use super::masks;
use super::matmul::matmul;
use super::sequences::Sequences;
use super::tensor::{HostTensor, TensorError};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, RowOutputs};
use rayon::prelude::*;
use std::ops::Range;

/// Queries per block. A block reads keys and values once for all of its queries.
const ROWS: usize = 8;

/// A problem with its tensors in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    problem: Problem,
    q: HostTensor<'a>,
    k: HostTensor<'a>,
    v: HostTensor<'a>,
    pub(super) sequences: Option<&'a Sequences>,
    extras: &'a Extras,
    /// The indices of the sequence and head to which the tensors' first batch and head belong.
    first: [usize; 2],
    /// See [`Inputs::operands`].
    operands: bool,
}

/// Results of the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// `[batch, rows, heads, head_dim]`. In a varlen problem, `rows` counts only rows that belong to a
    /// sequence.
    pub shape: [usize; 4],
    /// O, contiguous in the order of `shape`; 0 for a row that sees no key.
    pub out: Vec<f64>,
    /// The LSE: the natural logarithm of the sum of the exponentials of each row's scores, `[batch, heads,
    /// rows]`; -inf for a row that sees no key.
    pub lse: Vec<f64>,
    /// Each row's largest score, before sinks, like `lse`.
    pub max_logits: Vec<f64>,
    /// The entropy of each row's probabilities over keys, in nats, like `lse`; 0 for a row that sees no key.
    pub entropy: Vec<f64>,
}

impl Outputs {
    /// Returns the outputs of rows that see no key: O and entropy are 0, LSE and largest score -inf.
    pub fn without_keys(shape: [usize; 4]) -> Self {
        let [batches, rows, heads, columns] = shape;
        let none = vec![f64::NEG_INFINITY; batches * rows * heads];
        let (out, entropy) = (vec![0.0; none.len() * columns], vec![0.0; none.len()]);
        Outputs { shape, out, lse: none.clone(), max_logits: none, entropy }
    }

    /// Returns the outputs of rows.
    pub fn rows(&self) -> RowOutputs<&[f64]> {
        RowOutputs { lse: &self.lse, max_logits: &self.max_logits, entropy: &self.entropy }
    }

    fn rows_mut(&mut self) -> RowOutputs<&mut [f64]> {
        let Outputs { lse, max_logits, entropy, .. } = self;
        RowOutputs { lse, max_logits, entropy }
    }

    /// Returns O rounded to `dtype`, contiguous BSHD.
    pub fn out_bits(&self, dtype: DType) -> Vec<u16> {
        self.out.iter().map(|x| encode(dtype, *x)).collect()
    }
}

impl<'a> Inputs<'a> {
    /// Returns the inputs of `problem`.
    ///
    /// # Errors
    /// Returns [`TensorError`] if a tensor's shape or type differs from the problem's, or if the number of
    /// query heads is not a multiple of the number of key heads.
    pub fn new(
        problem: Problem,
        q: HostTensor<'a>,
        k: HostTensor<'a>,
        v: HostTensor<'a>,
    ) -> Result<Self, TensorError> {
        let Problem { dtype, kv_dtype, heads_q, heads_k, .. } = problem;
        let tensors = [("q", q, dtype), ("k", k, kv_dtype), ("v", v, kv_dtype)];
        for ((name, tensor, want_dtype), want) in tensors.into_iter().zip(problem.shapes()) {
            let (got, got_dtype) = (tensor.shape(), tensor.dtype());
            if got != want || got_dtype != want_dtype {
                return Err(TensorError::Mismatch { name, got, got_dtype, want, want_dtype });
            }
        }
        if heads_q % heads_k != 0 {
            return Err(TensorError::Heads { heads_q, heads_k });
        }
        Ok(Inputs {
            problem,
            q,
            k,
            v,
            sequences: None,
            extras: &Extras::NONE,
            first: [0; 2],
            operands: false,
        })
    }

    /// Returns the same inputs as a varlen problem, if `sequences` is given.
    pub(super) fn varlen(self, sequences: Option<&'a Sequences>) -> Self {
        Inputs { sequences, ..self }
    }

    /// Sets the extras. `first` is the index of their sequence and head to which the tensors' first batch and
    /// head belong.
    #[must_use]
    pub fn extras(self, extras: &'a Extras, first: [usize; 2]) -> Self {
        Inputs { extras, first, ..self }
    }

    /// Returns the same inputs. `operands` says whether products of eight bits take K and V as they are,
    /// because they lie in a cache of eight bits. Values of an int8 cache become e4m3 even then.
    #[must_use]
    pub fn operands(self, operands: bool) -> Self {
        Inputs { operands, ..self }
    }

    /// Whether products of eight bits take K and V as they are.
    pub(super) fn has_operands(&self) -> bool {
        self.operands
    }

    /// Returns one sequence of a varlen problem, as a problem of its own rows.
    pub(super) fn sequence(&self, index: usize, queries: Range<usize>, keys: Range<usize>) -> Self {
        let (seqlen_q, seqlen_k) = (queries.len(), keys.len());
        let problem = self.problem.batch(1).seqlen_q(seqlen_q).seqlen_k(seqlen_k).varlen(None);
        let [k, v] = [self.k, self.v].map(|tensor| tensor.rows(keys.clone()).of_sequence(index));
        let (q, first) = (self.q.rows(queries).of_sequence(index), [self.first[0] + index, self.first[1]]);
        Inputs { problem, q, k, v, sequences: None, first, ..*self }
    }

    /// Returns the problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    pub(super) fn q(&self) -> HostTensor<'a> {
        self.q
    }

    pub(super) fn k(&self) -> HostTensor<'a> {
        self.k
    }

    pub(super) fn v(&self) -> HostTensor<'a> {
        self.v
    }

    /// Returns the smallest interval that contains the visible keys of query `[batch, row]`, by
    /// [`masks::visible`].
    pub(super) fn visible(&self, [batch, row]: [usize; 2]) -> Range<usize> {
        masks::visible(&self.problem, self.position(row), self.prefix(batch))
    }

    /// Returns the position of query `row` among the keys.
    pub(super) fn position(&self, row: usize) -> i64 {
        let Problem { seqlen_q, seqlen_k, alignment, .. } = self.problem;
        match alignment {
            Alignment::TopLeft => row as i64,
            _ => seqlen_k as i64 - (seqlen_q as i64 - row as i64),
        }
    }

    /// Returns the slope of a head, or 0 without slopes.
    pub(super) fn slope(&self, batch: usize, head: usize) -> f32 {
        let [batch, head, _] = self.behind([batch, head, 0]);
        self.extras.slopes.as_ref().map_or(0.0, |slopes| slopes.of(batch, head))
    }

    /// Returns the sinks, one per query head.
    pub(super) fn sinks(&self) -> Option<&'a [f32]> {
        Some(&self.extras.sinks.as_deref()?[self.first[1]..])
    }

    /// Returns the bias of a query `[batch, head, row]` and a key, or 0 without a bias.
    pub(super) fn bias(&self, at: [usize; 3], key: usize) -> f32 {
        self.extras.bias.as_ref().map_or(0.0, |bias| bias.of(self.behind(at), key))
    }

    /// Returns the bias, if there is one.
    pub(super) fn bias_tensor(&self) -> Option<&'a BiasTensor> {
        self.extras.bias.as_ref()
    }

    /// Returns the index of the bias' element of a query `[batch, head, row]` and a key.
    pub(super) fn bias_index(&self, at: [usize; 3], key: usize) -> Option<usize> {
        Some(self.bias_tensor()?.index(self.behind(at), key))
    }

    /// Returns the keys of a sequence's prefix, or 0 without prefixes.
    fn prefix(&self, batch: usize) -> i32 {
        self.extras.prefixes.as_ref().map_or(0, |prefixes| prefixes[self.first[0] + batch])
    }

    /// Returns the mask's bit for a query `[batch, head, row]` and a key, or true without bits.
    pub(super) fn bit(&self, at: [usize; 3], key: usize) -> bool {
        let bits = self.extras.bits.as_ref();
        bits.is_none_or(|bits| bits.sees(self.behind(at), key, self.problem.seqlen_k))
    }

    /// Returns the place of a query `[batch, head, row]` in the extras.
    fn behind(&self, [batch, head, row]: [usize; 3]) -> [usize; 3] {
        [self.first[0] + batch, self.first[1] + head, row]
    }
}

/// Computes attention in f64.
pub fn exact(inputs: &Inputs) -> Outputs {
    let mut outputs = without_sinks(inputs);
    inputs.sinks().iter().for_each(|sinks| outputs.add_sinks(sinks));
    outputs
}

/// Computes attention in f64, without sinks.
pub(super) fn without_sinks(inputs: &Inputs) -> Outputs {
    attention(inputs, Exact)
}

/// Computes attention without sinks, and rounds every intermediate result to the inputs' type: rows times
/// their scales, scaled keys, scores, probabilities, output.
pub fn naive(inputs: &Inputs) -> Outputs {
    match inputs.problem.dtype {
        DType::F16 => attention(inputs, NaiveF16),
        // There is no eight-bit arithmetic, because only caches have eight-bit types.
        _ => attention(inputs, NaiveBf16),
    }
}

/// Computes attention without sinks in this arithmetic.
pub(super) fn attention<A: Arithmetic>(inputs: &Inputs, arithmetic: A) -> Outputs {
    if let Some(sequences) = inputs.sequences {
        return each_sequence(inputs, sequences, |one| attention(one, arithmetic));
    }
    let [batches, rows, heads, head_dim] = inputs.q.shape();
    let [_, keys, kv_heads, columns] = inputs.v.shape();
    let scale = A::Real::from_f32(inputs.problem.softmax_scale());
    let kv: Vec<_> = (0..batches * kv_heads)
        .into_par_iter()
        .map(|i| {
            let (batch, head) = (i / kv_heads, i % kv_heads);
            let mut k_transposed = vec![A::Real::ZERO; head_dim * keys];
            let mut v = Vec::with_capacity(columns * keys);
            for key in 0..keys {
                for (d, x) in inputs.k.values(batch, key, head).enumerate() {
                    k_transposed[d * keys + key] = arithmetic.round(arithmetic.round_key(x) * scale);
                }
                v.extend(inputs.v.values(batch, key, head).map(|x| arithmetic.round_value(x)));
            }
            (k_transposed, v)
        })
        .collect();

    let blocks = rows.div_ceil(ROWS);
    let results: Vec<_> = (0..batches * heads * blocks)
        .into_par_iter()
        .map(|i| {
            let (batch, head, first) = (i / blocks / heads, i / blocks % heads, i % blocks * ROWS);
            let (k_transposed, v) = &kv[batch * kv_heads + head / (heads / kv_heads)];
            (batch, head, first, row_block(inputs, arithmetic, [batch, head, first], k_transposed, v))
        })
        .collect();

    let mut outputs = Outputs::without_keys([batches, rows, heads, columns]);
    for (batch, head, first, (out, values)) in results {
        for (i, (o, values)) in out.chunks(columns).zip(values).enumerate() {
            let row = first + i;
            let start = ((batch * rows + row) * heads + head) * columns;
            outputs.out[start..start + columns].copy_from_slice(o);
            let at = (batch * heads + head) * rows + row;
            outputs.rows_mut().zip(values).map(|_, (all, value)| all[at] = value);
        }
    }
    outputs
}

/// Computes O and the outputs of rows of up to [`ROWS`] rows from `first` on.
fn row_block<A: Arithmetic>(
    inputs: &Inputs,
    arithmetic: A,
    [batch, head, first]: [usize; 3],
    k_transposed: &[A::Real],
    v: &[A::Real],
) -> (Vec<f64>, Vec<RowOutputs<f64>>) {
    let [_, rows, _, head_dim] = inputs.q.shape();
    let [_, keys, _, columns] = inputs.v.shape();
    let rows = first..rows.min(first + ROWS);
    let visible: Vec<_> = rows.clone().map(|row| inputs.visible([batch, row])).collect();
    let start = visible.iter().map(|r| r.start).min().unwrap_or(0);
    let count = visible.iter().map(|r| r.end).max().unwrap_or(0).saturating_sub(start);

    let q: Vec<_> =
        rows.clone().flat_map(|row| inputs.q.values(batch, row, head)).map(A::Real::from_f32).collect();
    let mut scores = vec![A::Real::ZERO; rows.len() * count];
    matmul(&q, head_dim, &k_transposed[start.min(keys)..], keys, &mut scores, count);

    let mut values = Vec::with_capacity(rows.len());
    let slope = A::Real::from_f32(inputs.slope(batch, head));
    for (i, visible) in visible.iter().enumerate() {
        let (row, position) = (&mut scores[i * count..][..count], inputs.position(first + i));
        let at = [batch, head, first + i];
        let changed = |score: A::Real, j: usize| {
            let key = start + j;
            if !inputs.bit(at, key) {
                return A::Real::LOWEST;
            }
            let distance = position.abs_diff(key as i64);
            score - slope * A::Real::from_f32(distance as f32) + A::Real::from_f32(inputs.bias(at, key))
        };
        values.push(softmax(inputs, arithmetic, row, visible.start - start..visible.end - start, changed));
    }

    let mut out = vec![A::Real::ZERO; rows.len() * columns];
    matmul(&scores, count, &v[start * columns..], columns, &mut out, columns);
    (out.into_iter().map(|x| arithmetic.round(x).to_f64()).collect(), values)
}

/// Turns raw scores into probabilities, which are zero outside of `visible`, and returns the outputs
/// of the row. `changed`
/// applies slopes, bias and the mask's bits to a score. `changed` never rounds to the inputs' type, because
/// FlashAttention's own reference does not round slopes either.
fn softmax<A: Arithmetic>(
    inputs: &Inputs,
    arithmetic: A,
    row: &mut [A::Real],
    visible: Range<usize>,
    changed: impl Fn(A::Real, usize) -> A::Real,
) -> RowOutputs<f64> {
    let mut max = A::Real::LOWEST;
    for (score, j) in row[visible.clone()].iter_mut().zip(visible.clone()) {
        *score = arithmetic.round(*score);
        if let Some(cap) = inputs.problem.softcap.map(A::Real::from_f32) {
            *score = arithmetic.round(arithmetic.round((arithmetic.round(*score / cap)).tanh()) * cap);
        }
        *score = changed(*score, j);
        // If a score is NaN, this comparison ignores it, but the sum below becomes NaN.
        if *score > max {
            max = *score;
        }
    }
    // The mask's bits may hide every key.
    let max = if max > A::Real::LOWEST { max } else { A::Real::ZERO };
    let (mut sum, mut weighted) = (A::Real::ZERO, 0.0);
    for (j, score) in row.iter_mut().enumerate() {
        let below = *score - max;
        *score = if visible.contains(&j) { below.exp() } else { A::Real::ZERO };
        sum += *score;
        // 0 times minus infinity would be NaN.
        weighted += if *score == A::Real::ZERO { 0.0 } else { score.to_f64() * below.to_f64() };
    }
    if sum == A::Real::ZERO {
        return RowOutputs { lse: f64::NEG_INFINITY, max_logits: f64::NEG_INFINITY, entropy: 0.0 };
    }
    let log_sum = sum.to_f64().ln();
    let entropy = log_sum - weighted / sum.to_f64();
    for p in &mut row[visible] {
        *p = arithmetic.round(*p / sum);
    }
    RowOutputs { lse: max.to_f64() + log_sum, max_logits: max.to_f64(), entropy }
}

/// Computes attention of each sequence by itself. The result omits rows of Q that belong to no sequence.
pub(super) fn each_sequence(
    inputs: &Inputs,
    sequences: &Sequences,
    attention: impl Fn(&Inputs) -> Outputs,
) -> Outputs {
    let (heads, columns) = (inputs.q().shape()[2], inputs.v().shape()[3]);
    let rows = sequences.rows();
    let mut all = Outputs::without_keys([1, rows, heads, columns]);
    for sequence in 0..sequences.count() {
        let (queries, keys) = (sequences.queries(sequence), sequences.keys(sequence));
        let one = attention(&inputs.sequence(sequence, queries.clone(), keys));
        let row = heads * columns;
        all.out[queries.start * row..queries.end * row].copy_from_slice(&one.out);
        for head in 0..heads {
            let own = head * queries.len()..(head + 1) * queries.len();
            let pairs = all.rows_mut().zip(one.rows());
            pairs.map(|_, (all, one)| all[head * rows..][queries.clone()].copy_from_slice(&one[own.clone()]));
        }
    }
    all
}
