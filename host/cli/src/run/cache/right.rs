//! The expected results of a file's KV cache, and the comparison with them.
use super::{Input, columns_of};
use crate::error::Error;
use crate::results::{Results, Took};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Precision, TensorView};
use ferroflash::spec::E4m3Scaled;
use rayon::prelude::*;
use reference::{
    HostTensor, Inputs, Outputs, Reference, TensorError, Verdict, scaled_e4m3, widen_e4m3, widen_int8,
};
use std::time::Instant;

impl Input {
    /// Computes attention on the CPU.
    ///
    /// # Errors
    /// Returns the errors of planning, which needs no device.
    pub(in crate::run) fn compute(&self) -> Result<Results, Error> {
        self.validate()?;
        let start = Instant::now();
        let (mut o, mut lse) =
            (vec![0; self.rows() * self.columns()], vec![f32::NEG_INFINITY; self.lse().0.iter().product()]);
        let row = self.problem.heads_q * self.columns();
        for b in 0..self.problem.batch {
            let Reference { exact, .. } = self.reference(b)?;
            let bits = exact.out_bits(self.problem.dtype);
            o[self.starts[b] * row..][..bits.len()].copy_from_slice(&bits);
            self.lse_of(b).zip(&exact.lse).for_each(|(at, x)| lse[at] = *x as f32);
        }
        let took = Took::on_cpu(start.elapsed());
        Ok(Results { kernel: None, reason: None, o, rows: Some(lse).into(), head_maxima: None, took })
    }

    /// Returns the expected result of sequence `b`.
    fn reference(&self, b: usize) -> Result<Reference, TensorError> {
        let Problem { dtype, heads_q, heads_k, .. } = self.problem;
        let (queries, columns) = (self.rows_of(b).len(), self.columns());
        let group = heads_q / heads_k * columns;
        let mut all = without_keys([queries, heads_q, columns]);
        if self.lengths[b] > 0 && queries > 0 {
            all.exact.lse.clear();
            let heads: Result<Vec<_>, _> =
                (0..heads_k).into_par_iter().map(|head| self.of_head(b, head)).collect();
            for (head, one) in heads?.into_iter().enumerate() {
                for (row, o) in one.exact.out.chunks(group).enumerate() {
                    all.exact.out[(row * heads_k + head) * group..][..group].copy_from_slice(o);
                }
                all.exact.lse.extend(one.exact.lse);
                all.naive_error = all.naive_error.max(one.naive_error);
                all.tolerance = all.tolerance.max(one.tolerance);
                all.lse_tolerance = all.lse_tolerance.max(one.lse_tolerance);
            }
        }
        if let Some(sinks) = &self.sinks {
            all.add_sinks(dtype, sinks);
        }
        Ok(all)
    }

    /// Returns the expected results of a key head's query heads. Each key head may have its own scale.
    fn of_head(&self, b: usize, head: usize) -> Result<Reference, TensorError> {
        let Problem { dtype, heads_q, heads_k, head_dim, .. } = self.problem;
        let (keys, group, queries) = (self.keys_of(b, head).len(), heads_q / heads_k, self.rows_of(b));
        if keys == 0 {
            return Ok(without_keys([queries.len(), group, self.columns()]));
        }
        let [k, v] = [0, 1].map(|which| self.rows_in(which, b, head));
        // The values of a latent cache are columns of its keys, with their scale.
        let [of_keys, of_values] = &self.scales;
        let scales = [of_keys, if self.v_width.is_some() { of_keys } else { of_values }];
        let [k_scale, v_scale] = scales.map(|scale| match scale.as_deref() {
            _ if self.pages.dtype == DType::Int8 => 1.0,
            None => 1.0,
            Some([shared]) => *shared,
            Some(each) => each[head],
        });
        let problem = self.problem.batch(1).seqlen_q(queries.len()).seqlen_k(keys).varlen(None);
        let mut problem = problem.heads_q(group).heads_k(1).head_dim_v(self.columns());
        problem.scale = Some(problem.softmax_scale() * k_scale);
        let (row, each) = (heads_q * head_dim, queries.len() * heads_q * head_dim);
        let strides = [each, row, head_dim, 1].map(|elements| elements as i64);
        let first = queries.start * row + head * group * head_dim;
        let q = HostTensor::new(&self.q, first, dtype, [1, queries.len(), group, head_dim], strides)?;
        // The values of a latent cache are the first columns of its rows.
        let rows_of = |rows, stored: usize, columns| {
            let strides = [keys * stored, stored, stored, 1].map(|elements| elements as i64);
            HostTensor::new(rows, 0, dtype, [1, keys, 1, columns], strides)
        };
        let stored = columns_of(self.pools()[1].1);
        let [k, v] = [rows_of(&k[..], head_dim, head_dim)?, rows_of(&v[..], stored, self.columns())?];
        let row_scales = [0, 1].map(|which| self.scales_in(which, b, head));
        let [k, v] = match &row_scales {
            [Some(of_keys), Some(of_values)] => [k.scaled(of_keys)?, v.scaled(of_values)?],
            _ => [k, v],
        };
        let inputs = Inputs::new(problem, q, k, v)?.extras(&self.extras, [b, head * group]);
        let inputs = inputs.operands(problem.precision != Precision::Inputs);
        let reference = Reference::new(&inputs);
        let is_int8 = self.pages.dtype == DType::Int8;
        let reference = if is_int8 { reference } else { reference.scale_values(dtype, v_scale) };
        Ok(if self.shared.is_some() { reference.of_merged_states(&inputs, v_scale) } else { reference })
    }

    /// Returns the pages of keys and of values, with their layouts. In a latent cache, the pages of keys are
    /// also the pages of values.
    fn pools(&self) -> [(&[u8], &TensorView); 2] {
        let [keys, values] = &self.pool;
        let keys = (&keys[..], &self.pages);
        [keys, if self.v_width.is_some() { keys } else { (values, &self.values) }]
    }

    /// Returns whether the mask hides a key of sequence `b` from every query.
    pub(super) fn hides(&self, b: usize, key: usize) -> bool {
        let problem = self.problem.batch(1).varlen(None).seqlen_q(self.rows_of(b).len());
        reference::hides(&problem.seqlen_k(self.lengths[b] as usize), key)
    }

    /// Returns the scales of the keys (0) or values (1) of a head of sequence `b` in an int8 cache. Hidden
    /// keys, whose scales may be any numbers, have 1.
    fn scales_in(&self, which: usize, b: usize, head: usize) -> Option<Vec<f32>> {
        let [_, page, heads, _] = self.pages.shape;
        let all = self.scales[which].as_deref().filter(|_| self.pages.dtype == DType::Int8)?;
        let of = |(key, [number, within]): (usize, [usize; 2])| match self.hides(b, key) {
            true => 1.0,
            false => all[(number * page + within) * heads + head],
        };
        Some(self.keys_of(b, head).into_iter().enumerate().map(of).collect())
    }

    /// Returns the keys (0) or values (1) of a head of sequence `b`, as numbers of the queries' type. Rows
    /// of eight bits are not multiplied by their scales.
    fn rows_in(&self, which: usize, b: usize, head: usize) -> Vec<u16> {
        let (pool, view) = self.pools()[which];
        let (dtype, [.., columns]) = (self.problem.dtype, view.shape);
        let bytes = self.pages.dtype.bytes();
        let row = |[number, within]: [usize; 2]| {
            let at = [number, within, head].into_iter().zip(view.strides);
            let at = at.map(|(i, stride)| i * stride as usize).sum::<usize>();
            let row = &pool[at * bytes..][..columns * bytes];
            if self.pages.dtype == DType::E4m3Scaled {
                return with_scales(row, dtype);
            }
            let number = |bytes: &[u8]| match (self.pages.dtype, bytes) {
                (_, [low, high]) => u16::from_le_bytes([*low, *high]),
                (DType::Int8, _) => widen_int8(bytes[0], dtype),
                _ => widen_e4m3(bytes[0], dtype),
            };
            row.chunks_exact(bytes).map(number).collect::<Vec<_>>()
        };
        self.keys_of(b, head).into_iter().flat_map(row).collect()
    }

    /// Returns the worst verdict of all sequences.
    pub(in crate::run) fn judge(&self, o: &[u16], lse: &[f32]) -> Result<Option<Verdict>, TensorError> {
        let (Problem { dtype, batch, heads_q, .. }, columns) = (self.problem, self.columns());
        let all_rows = HostTensor::bshd(o, dtype, [1, self.rows() / heads_q, heads_q, columns])?;
        let mut all: Option<Verdict> = None;
        for b in 0..batch {
            let lse: Vec<_> = self.lse_of(b).map(|at| lse[at]).collect();
            let o = all_rows.rows(self.rows_of(b));
            let Some(mut verdict) = self.reference(b)?.judge(&o, Some(&lse)) else { return Ok(None) };
            verdict.out.batch = b;
            verdict.rows.lse.iter_mut().for_each(|worst| worst.batch = b);
            all = Some(all.map_or(verdict, |all| all.or_worse(&verdict)));
        }
        Ok(all)
    }
}

/// Returns the numbers of a row with scales ([`E4m3Scaled`]), as kernels round them to the queries' type.
fn with_scales(row: &[u8], dtype: DType) -> Vec<u16> {
    let (numbers, rest) = row.split_at(E4m3Scaled::SCALED);
    let (scales, plain) = rest.split_at(rest.len() - 2 * E4m3Scaled::PLAIN);
    let scale = |i: usize| f32::from_le_bytes(scales.as_chunks().0[i / E4m3Scaled::PER_SCALE]);
    let numbers = numbers.iter().enumerate().map(|(i, bits)| scaled_e4m3(*bits, scale(i), dtype));
    numbers.chain(plain.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes))).collect()
}

/// Returns the expected result of rows that see no key: `[queries, heads, columns]`.
fn without_keys([queries, heads, columns]: [usize; 3]) -> Reference {
    let exact = Outputs::without_keys([1, queries, heads, columns]);
    Reference { exact, naive_error: 0.0, tolerance: 0.0, lse_tolerance: 1e-5, sum_tolerance: f64::INFINITY }
}
