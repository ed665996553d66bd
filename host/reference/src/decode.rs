//! Attention on KV caches: cases, their memory layout, and their exact results.
use super::alibi::Slopes;
use super::arithmetic::decode;
use super::attention::Inputs;
use super::cycled::{self, Filling};
use super::extras::Extras;
use super::inputs::Random;
use super::tensor::{HostTensor, TensorError};
use super::tolerance::Reference;
use super::tolerance::Rule;
use super::work::{Judgement, POISON};
use ferroflash::DType;
use rayon::prelude::*;

mod cache;
mod case;
mod edges;
mod latent;
mod loaded;
mod shared;
mod told;

use cache::{Rows, Table};

pub use case::{DecodeCase, Pages, Shared};
pub use edges::{
    decode_edges, decode_long, mixed_astray, mixed_edges, mixed_long, paged_astray, paged_edges, paged_long,
};
pub use latent::{latent_edges, latent_long};
pub use loaded::{DecodeOutcome, LoadedDecode};

/// Number of pages that belong to no sequence.
const FOREIGN: usize = 3;

/// A case in host memory.
#[derive(Clone, Debug)]
pub struct DecodeMemory {
    case: DecodeCase,
    q: Vec<u16>,
    sinks: Vec<f32>,
    slopes: Slopes,
    /// Bias and masks.
    extras: Extras,
    /// Keys and values of all pages, in one or two buffers.
    pool: Filling,
    table: Table,
}

impl DecodeMemory {
    /// Draws standard normal inputs. Pages are shuffled. Every second sequence shares its first page with the
    /// previous sequence if both fill that page, unless the case names the pages that sequences share. Rows
    /// that belong to no sequence are NaN.
    pub fn new(case: &DecodeCase) -> Self {
        let mut random = Random::new(case.seed);
        let (batch, [heads, _]) = (case.filled.len(), case.heads);
        let sequence = |(b, (seed, keys)): (usize, (&u64, &usize))| {
            let mut random = Random::new(*seed);
            let q = random.normals(case.dtype, case.queries_of(b) * heads * case.head_dim);
            let rows = [0, 1].map(|which| {
                let scale = |i| case.scale(which, i / case.head_dim);
                (0..keys * case.row()).map(|i| case.number(random.normal(), scale(i))).collect::<Vec<_>>()
            });
            (q, if case.latent { [rows[0].clone(), rows[0].clone()] } else { rows })
        };
        let own: Vec<_> = case.seeds.par_iter().zip(&case.filled).enumerate().map(sequence).collect();
        let slopes = Slopes::random(case.seed, batch, heads, -1);
        let (mut q, mut rows) = (vec![], [vec![], vec![]]);
        for (own, [k, v]) in own {
            q.extend(own);
            rows[0].push(k);
            rows[1].push(v);
        }
        q.resize(case.q_rows() * heads * case.head_dim, u16::from_ne_bytes([POISON; 2]));
        let sinks = (0..heads).map(|_| random.normal() as f32).collect();
        let (page, pages_of) = case.paging();
        let shared = |b: usize| {
            let full = |b: usize| case.filled[b] >= page && pages_of(case.filled[b]) > 1;
            let first = !case.pages.are_whole() && b % 2 == 1 && full(b) && full(b - 1);
            if case.shared.is_some() { case.shared_with_previous(b) } else { usize::from(first) }
        };
        for (b, pages) in (0..batch).map(|b| (b, shared(b))).filter(|(_, pages)| *pages > 0) {
            rows.iter_mut().for_each(|rows: &mut Vec<Vec<u16>>| {
                let shared = rows[b - 1][..pages * page * case.row()].to_vec();
                rows[b][..shared.len()].copy_from_slice(&shared);
            });
        }
        let table = Table::new(case, &mut random, FOREIGN, shared);
        let pool = Filling::Laid(vec![]);
        let extras = Extras::random(&case.whole(), case.seed);
        let mut memory = DecodeMemory { case: case.clone(), q, sinks, slopes, extras, pool, table };
        memory.pool = Filling::Laid(memory.laid(&rows));
        memory
    }

    /// Makes inputs for a measurement. The elements repeat with a long period, because the generation of
    /// gigabytes must be fast. Pages are shuffled. Every page belongs to exactly one sequence.
    pub fn to_measure(case: &DecodeCase) -> Self {
        let mut random = Random::new(case.seed);
        let (batch, [heads, _]) = (case.filled.len(), case.heads);
        let q = cycled::halves(case.dtype, 0, case.q_rows() * heads * case.head_dim);
        let sinks = (0..heads).map(|_| random.normal() as f32).collect();
        let [of, each] = if case.alibi { [batch, heads] } else { [1; 2] };
        let slopes = Slopes::random(case.seed, of, each, -1);
        let table = Table::new(case, &mut random, 0, |b| case.shared_with_previous(b));
        let ([buffers, tensors], elements) = (case.buffers(), table.count * case.paging().0 * case.row());
        let pool = Filling::Cycled(vec![(case.cache, tensors * elements); buffers]);
        let extras = Extras::random(&case.whole(), case.seed);
        DecodeMemory { case: case.clone(), q, sinks, slopes, extras, pool, table }
    }

    /// Returns the reference of sequence `b` on its first `keys` keys, or `None` if the sequence has no key.
    ///
    /// # Errors
    /// Returns [`TensorError`] if the case contradicts itself.
    pub fn reference(&self, b: usize, keys: usize) -> Result<Option<Reference>, TensorError> {
        self.reference_of(&self.rows(&self.pool.buffers(), b), b, keys)
    }

    /// Like [`DecodeMemory::reference`], with the sequence's keys and values in `rows`.
    fn reference_of(&self, rows: &Rows, b: usize, keys: usize) -> Result<Option<Reference>, TensorError> {
        let case = &self.case;
        let queries = case.queries_of(b);
        if keys == 0 || queries == 0 {
            return Ok(None);
        }
        let tensor = |bits, rows: usize, heads: usize| {
            let (row, dim) = ((heads * case.head_dim) as i64, case.head_dim as i64);
            let shape = [1, rows, heads, case.head_dim];
            HostTensor::new(bits, 0, case.dtype, shape, [rows as i64 * row, row, dim, 1])
        };
        let q = tensor(self.query_rows(b), queries, case.heads[0])?;
        let scales =
            [0, 1].map(|i| (0..keys * case.heads[1]).map(|row| case.scale(i, row)).collect::<Vec<_>>());
        let [k, v] = [0, 1].map(|i| match (tensor(&rows[i], keys, case.heads[1]), case.cache) {
            (Ok(rows), DType::Int8) => rows.scaled(&scales[i]),
            (rows, _) => rows,
        });
        let inputs = Inputs::new(case.problem(b, keys), q, k?, v?)?;
        let inputs = inputs.alibi(case.alibi.then_some(&self.slopes), b).extras(&self.extras, [b, 0]);
        let mut reference = Reference::of_columns(&inputs, case.columns());
        if case.shared.is_some() {
            reference = reference.of_merged_states(&inputs, 1.0);
        }
        if case.sinks {
            reference.add_sinks(case.dtype, &self.sinks);
        }
        Ok(Some(reference))
    }

    /// Returns the rows of Q of sequence `b`.
    fn query_rows(&self, b: usize) -> &[u16] {
        let (row, starts) = (self.case.heads[0] * self.case.head_dim, self.case.starts());
        &self.q[starts[b] * row..starts[b + 1] * row]
    }

    /// Compares `outcome` with the reference for these lengths, and returns every error in words. The kernel
    /// clamps lengths to the bound that the host declared. A sequence whose length exceeds the cache's filled
    /// keys is not judged.
    ///
    /// # Errors
    /// Returns [`TensorError`] if the case contradicts itself.
    pub fn judge(&self, outcome: &DecodeOutcome, lengths: &[i32]) -> Result<Vec<String>, TensorError> {
        Ok(self.compare(outcome, lengths, &self.references(lengths, Rule::Tolerance)?)?.failures)
    }

    /// Returns the number of keys of sequence `b` if the device reads `length`, or `None` if the cache holds
    /// fewer keys.
    fn keys(&self, b: usize, length: i32) -> Option<usize> {
        let keys = (length.max(0) as usize).min(self.case.max_k);
        (keys <= self.case.filled[b]).then_some(keys)
    }

    /// Returns whether sequence `b` has a defined result: whether all queries of each sequence see its
    /// prefix. A varlen group has its own length, so that other sequences do not matter.
    fn is_defined(&self, b: usize, lengths: &[i32]) -> bool {
        let has_prefix = |b: usize| lengths[b] >= self.case.least(b) as i32;
        let is_varlen = self.case.shared.as_ref().is_some_and(|shared| shared.varlen);
        if is_varlen { has_prefix(b) } else { (0..lengths.len()).all(has_prefix) }
    }

    /// Returns the reference of each sequence for these lengths, or `None` for a sequence that has no key or
    /// is not judged.
    fn references(&self, lengths: &[i32], rule: Rule) -> Result<Vec<Option<Reference>>, TensorError> {
        let (dtype, pool) = (self.case.dtype, self.pool.buffers());
        let one = |(b, length): (usize, &i32)| {
            let rows = self.rows(&pool, b);
            let reference =
                self.keys(b, *length).map_or(Ok(None), |keys| self.reference_of(&rows, b, keys))?;
            let scale = |i| self.case.row_scale(1, i / self.case.head_dim);
            let values =
                rows[1].iter().enumerate().map(|(i, bits)| f64::from(decode(dtype, *bits) * scale(i)));
            Ok(reference.map(|reference| reference.by(rule, dtype, values)))
        };
        lengths.par_iter().enumerate().map(one).collect()
    }

    /// Compares an outcome with these references.
    fn compare(
        &self,
        outcome: &DecodeOutcome,
        lengths: &[i32],
        right: &[Option<Reference>],
    ) -> Result<Judgement, TensorError> {
        let case = &self.case;
        let mut all = Judgement { failures: outcome.counters_left(), ..Judgement::default() };
        for (b, (length, reference)) in lengths.iter().zip(right).enumerate() {
            if !self.is_defined(b, lengths) || self.keys(b, *length).is_none() {
                continue;
            }
            let (o, lse) = (outcome.o(b), outcome.lse(b));
            if let Some(reference) = reference {
                let [rows, heads, dim] = [case.queries_of(b), case.heads[0], case.columns()];
                let strides = [(rows * heads * dim) as i64, (heads * dim) as i64, dim as i64, 1];
                let o = HostTensor::new(o, 0, case.dtype, [1, rows, heads, dim], strides)?;
                let verdict = reference.judge(&o, Some(lse));
                let mut judgement =
                    verdict.map_or_else(|| Judgement::failed("another shape"), Judgement::from);
                judgement
                    .failures
                    .iter_mut()
                    .for_each(|failure| *failure = format!("sequence {b}: {failure}"));
                all = all.and(judgement);
                continue;
            }
            let sink = |head: usize| if case.sinks { self.sinks[head] } else { f32::NEG_INFINITY };
            let is = |(i, x): (usize, &f32)| {
                let want = sink(i / case.queries_of(b));
                *x == want || (x - want).abs() <= 1e-5
            };
            if o.iter().any(|x| *x != 0) || !lse.iter().enumerate().all(is) {
                all.failures.push(format!("sequence {b} has no key: {o:?} {lse:?}"));
            }
        }
        if outcome.strays() > 0 {
            all.failures.push(format!("{} elements of no sequence were written", outcome.strays()));
        }
        Ok(all)
    }
}
