//! The expected outputs of a launch.
use super::Memory;
use super::cache::Cache;
use super::outcome::{Outcome, Part};
use crate::arithmetic::decode;
use crate::attention::Inputs;
use crate::bounds::Bounds;
use crate::device_lengths::DeviceLengths;
use crate::tensor::{HostTensor, TensorError};
use crate::tolerance::{Reference, Rule};
use crate::work::Judgement;
use ferroflash::DType;
use ferroflash::request::Precision;
use rayon::prelude::*;

/// The expected outputs of sequences that are judged together: of all sequences of tensors, or of one
/// sequence of a cache.
pub(super) struct Expected {
    /// The sequence of a cache.
    sequence: Option<usize>,
    part: Part,
    right: Right,
}

enum Right {
    Tolerance(Reference),
    Bounds(Bounds),
}

impl Expected {
    /// Judges these sequences.
    pub(super) fn judge(&self, outcome: &Outcome, dtype: DType) -> Judgement {
        let verdict = outcome.judge_part(self.part.clone(), dtype, |o, rows| match &self.right {
            Right::Tolerance(reference) => reference.judge_rows(o, rows),
            Right::Bounds(bounds) => bounds.judge(o, rows.lse),
        });
        let not_judged = if let Right::Bounds(bounds) = &self.right { bounds.not_judged() } else { 0 };
        let judgement =
            verdict.map_or_else(|| Judgement::failed("the output has another shape"), Judgement::from);
        let place = self.sequence.map_or(String::new(), |b| format!("sequence {b}: "));
        let failures = judgement.failures.iter().map(|failure| format!("{place}{failure}")).collect();
        Judgement { failures, not_judged, ..judgement }
    }
}

impl Memory {
    /// Returns the expected outputs of a launch that finds these integers; `None` if no output is defined.
    pub(super) fn expected(
        &self,
        device_lengths: DeviceLengths,
        rule: Rule,
    ) -> Result<Option<Vec<Expected>>, TensorError> {
        match (&self.cache, device_lengths) {
            (_, DeviceLengths::Lost(_)) | (None, DeviceLengths::Garbage(_)) => Ok(None),
            (Some(cache), device_lengths) => {
                self.of_lengths(cache, &cache.case.lengths(device_lengths), rule).map(Some)
            }
            (None, device_lengths) => self.of_tensors(device_lengths, rule).map(Some),
        }
    }

    fn of_tensors(&self, device_lengths: DeviceLengths, rule: Rule) -> Result<Vec<Expected>, TensorError> {
        let sequences = self.sequences.as_ref().map(|sequences| sequences.device_lengths(device_lengths));
        let inputs = self.inputs()?.varlen(sequences.as_ref());
        let part = [0..self.o.shape[0], 0..self.rows_written(device_lengths)];
        if part[1].is_empty() {
            return Ok(vec![]);
        }
        let (kv_dtype, o_dtype) = (self.problem.kv_dtype, self.problem.o_dtype);
        let values = self.buffers[self.v.buffer].iter().map(|bits| f64::from(decode(kv_dtype, *bits)));
        let right = match rule {
            Rule::Bounds if self.problem.precision == Precision::Inputs => {
                Right::Bounds(Bounds::new(&inputs))
            }
            rule => Right::Tolerance(Reference::new(&inputs).by(rule, o_dtype, values)),
        };
        Ok(vec![Expected { sequence: None, part, right }])
    }

    /// Returns the expected outputs of each sequence for these lengths. The kernel clamps lengths to the
    /// bound that the host declared. A sequence whose length exceeds the cache's filled keys is not judged.
    fn of_lengths(&self, cache: &Cache, lengths: &[i32], rule: Rule) -> Result<Vec<Expected>, TensorError> {
        let (case, pool) = (&cache.case, cache.pool.buffers());
        // Whether all queries of each sequence see its prefix. A varlen group has its own length, so other
        // sequences do not matter.
        let has_prefix = |b: usize| lengths[b] >= case.least(b) as i32;
        let is_varlen = case.shared.as_ref().is_some_and(|shared| shared.varlen);
        let all = is_varlen || (0..lengths.len()).all(has_prefix);
        let one = |(b, length): (usize, &i32)| {
            let (keys, part) = ((*length).max(0).min(case.max_k as i32) as usize, self.part(b));
            if !all || !has_prefix(b) || keys > case.filled[b] || part[1].is_empty() {
                return Ok(None);
            }
            let right = Right::Tolerance(match keys {
                0 => self.without_keys(case.queries_of(b)),
                _ => self.of_sequence(cache, &cache.rows(&pool, b), [b, keys], rule)?,
            });
            Ok(Some(Expected { sequence: Some(b), part, right }))
        };
        let all: Result<Vec<_>, _> = lengths.par_iter().enumerate().map(one).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    fn without_keys(&self, queries: usize) -> Reference {
        let [.., heads, columns] = self.o.shape;
        let sinks = self.extras.sinks.as_deref();
        Reference::without_keys([1, queries, heads, columns], self.problem.o_dtype, sinks)
    }

    /// Returns the reference of sequence `b` on its first `keys` keys, which are in `rows`.
    fn of_sequence(
        &self,
        cache: &Cache,
        rows: &[Vec<u16>; 2],
        [b, keys]: [usize; 2],
        rule: Rule,
    ) -> Result<Reference, TensorError> {
        let (case, [batches, queries]) = (&cache.case, self.part(b));
        let q = self.tensor(self.q, case.dtype)?.batches(batches).rows(queries);
        let scales = [0, 1].map(|which| (0..keys * case.heads[1]).map(move |row| case.scale(which, row)));
        let scales = scales.map(Iterator::collect::<Vec<_>>);
        let kv = |which: usize, columns| {
            let rows = HostTensor::bshd(&rows[which], case.dtype, [1, keys, case.heads[1], columns])?;
            if case.kv_dtype() == DType::Int8 { rows.scaled(&scales[which]) } else { Ok(rows) }
        };
        let inputs = Inputs::new(case.problem_of(b, keys), q, kv(0, case.head_dim)?, kv(1, case.columns())?)?;
        let inputs = inputs.extras(&self.extras, [b, 0]).operands(case.precision != Precision::Inputs);
        let reference = Reference::new(&inputs);
        let reference = match case.shared {
            Some(_) => reference.of_merged_states(&inputs, 1.0),
            None => reference,
        };
        let scale = |i| if case.kv_dtype() == DType::Int8 { case.scale(1, i / case.columns()) } else { 1.0 };
        let values = rows[1].iter().enumerate();
        let values = values.map(|(i, bits)| f64::from(decode(case.dtype, *bits) * scale(i)));
        Ok(reference.by(rule, self.problem.o_dtype, values))
    }

    /// Compares the outcome of a launch on a cache with the reference for these lengths, and returns every
    /// error in words.
    ///
    /// # Errors
    /// Returns [`TensorError`] if the problem contradicts itself.
    pub fn failures(&self, outcome: &Outcome, lengths: &[i32]) -> Result<Vec<String>, TensorError> {
        let expected = self.cache.as_ref().map(|cache| self.of_lengths(cache, lengths, Rule::Tolerance));
        let expected = expected.transpose()?.unwrap_or_default();
        let judged = expected.iter().map(|expected| expected.judge(outcome, self.problem.o_dtype));
        Ok(judged.fold(outcome.outside(), Judgement::and).failures)
    }

    /// Returns the batches and rows of Q and O of sequence `b` of a cache.
    pub(super) fn part(&self, b: usize) -> Part {
        match self.cache.as_ref().map(|cache| &cache.case) {
            Some(case) if case.varlen_queries.is_some() => {
                let starts = case.starts();
                [0..1, starts[b]..starts[b + 1]]
            }
            _ => [b..b + 1, 0..self.o.shape[1]],
        }
    }

    /// Returns the number of rows per batch that a launch with these integers writes.
    pub(super) fn rows_written(&self, device_lengths: DeviceLengths) -> usize {
        match (&self.sequences, &self.cache, device_lengths) {
            (_, _, DeviceLengths::Lost(_)) | (None, None, _) | (Some(_), _, DeviceLengths::Garbage(_)) => {
                self.o.shape[1]
            }
            (Some(sequences), _, device_lengths) => sequences.device_lengths(device_lengths).rows(),
            (None, Some(Cache { case, .. }), _) if case.varlen_queries.is_some() => {
                case.starts()[case.batch()]
            }
            (None, Some(_), _) => self.o.shape[1],
        }
    }
}
