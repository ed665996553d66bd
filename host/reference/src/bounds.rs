//! Error bounds for inputs of any magnitude, where naive 16-bit arithmetic overflows or underflows. A bound
//! is the largest error of an element in a kernel that sums in f32 and rounds probabilities and O to the
//! inputs' type.
use super::arithmetic::unit_roundoff;
use super::attention::{Inputs, Outputs, exact};
use super::tensor::HostTensor;
use super::tolerance::{Element, Verdict, Worst, elements, of_rows, worst};
use ferroflash::DType;
use ferroflash::plan::Problem;
use rayon::prelude::*;
use std::f64::consts::LOG2_E;

/// Returns a limit for scores (scaled, capped, times log2 e). If a score of a row reaches this limit, the row
/// is not judged. Kernels keep row maxima in f32, as base-2 exponents. From this magnitude on, half an ulp of
/// a maximum exceeds the exponent range of a probability in the inputs' type: 16 in f16, 128 in bf16.
pub const fn score_limit(dtype: DType) -> f64 {
    ((1u64 << 24) * (2 - dtype.min_exponent()) as u64) as f64
}
/// Relative error of an f32 operation. Tensor cores truncate, so this is a whole ulp.
const ULP: f64 = 1.0 / (1u64 << 23) as f64;
/// f32 operations may flush smaller numbers to 0.
const VANISHES: f64 = f32::MIN_POSITIVE as f64;
/// A key has no weight if its score is this far below another key's score: e^-30.
const NO_WEIGHT: f64 = 30.0;
/// The largest probability that a lazy maximum permits before O is normalised.
const LAZY: f64 = 256.0;
/// Up to this softcap, kernels compute tanh with an absolute precision of f32. Above it, they compute with a
/// relative precision of f32.
const MODEST_CAP: f64 = 1024.0;

/// The exact result, and the maximum permitted error of each element of O and LSE. The bound of a row is
/// infinite, so the row is not judged, if one of its scores reaches [`score_limit`] or if its products or
/// unnormalised sums overflow f32.
pub struct Bounds {
    exact: Outputs,
    out: Vec<f64>,
    lse: Vec<f64>,
}

/// Q, K or V of one head in f64, row by row.
struct Head(Vec<f64>);

/// A key's score, the score's error bound in f32, and the key's row of V.
struct Score<'a> {
    value: f64,
    error: f64,
    values: &'a [f64],
}

impl Bounds {
    /// Computes the exact result and the bounds in f64.
    pub fn new(inputs: &Inputs) -> Self {
        let (exact, p, sinks) = (exact(inputs), inputs.problem(), inputs.sinks());
        let [batches, rows, heads, columns] = exact.shape;
        let heads_of = |tensor: HostTensor| -> Vec<Head> {
            let [batches, _, heads, _] = tensor.shape();
            (0..batches * heads).map(|i| Head::new(&tensor, i / heads, i % heads)).collect()
        };
        let [q, k, v] = [inputs.q(), inputs.k(), inputs.v()].map(heads_of);
        let at = |index: usize| (index / heads / rows * heads + index % heads) * rows + index / heads % rows;
        let none = vec![0.0; columns];
        let of_row = |index: usize| {
            let (batch, row, head) = (index / (rows * heads), index / heads % rows, index % heads);
            let kv = batch * p.heads_k + head / (p.heads_q / p.heads_k);
            let q = q[batch * heads + head].row(row, p.head_dim);
            let (slope, position) = (f64::from(inputs.slope(batch, head)), inputs.position(row));
            let place = [batch, head, row];
            let score = |key: usize| {
                let more = f64::from(inputs.bias(place, key)) - slope * position.abs_diff(key as i64) as f64;
                Score::new(p, q, k[kv].row(key, p.head_dim), v[kv].row(key, columns), more)
            };
            let seen = inputs.visible([batch, row]).filter(|key| inputs.bit(place, *key));
            let scores = seen.map(score).filter(|score| score.value > f64::NEG_INFINITY);
            let scores: Vec<_> = scores.chain(sinks.map(|sinks| Score::sink(sinks[head], &none))).collect();
            bound(p.dtype, &scores, &exact.out[index * columns..][..columns], exact.lse[at(index)])
        };
        let all: Vec<_> = (0..batches * rows * heads).into_par_iter().map(of_row).collect();
        let mut lse = vec![0.0; exact.lse.len()];
        all.iter().enumerate().for_each(|(index, (_, bound))| lse[at(index)] = *bound);
        let out = all.into_iter().flat_map(|(out, _)| out).collect();
        Bounds { exact, out, lse }
    }

    /// Returns the number of rows of O, over all heads.
    pub fn rows(&self) -> usize {
        self.lse.len()
    }

    /// Returns the number of rows of O with an element that is not judged.
    pub fn not_judged(&self) -> usize {
        let rows = self.out.chunks(self.exact.shape[3]);
        rows.filter(|row| row.iter().any(|bound| bound.is_infinite())).count()
    }

    /// Returns the elements of O and LSE with the largest error relative to their bounds. Returns `None` if a
    /// shape differs from the reference's.
    pub fn judge(&self, out: &HostTensor, lse: Option<&[f32]>) -> Option<Verdict> {
        if out.shape() != self.exact.shape || lse.is_some_and(|lse| lse.len() != self.lse.len()) {
            return None;
        }
        let out = furthest("o", elements(out, &self.exact.out), &self.out)?;
        let of_lse = |lse| furthest("lse", of_rows(lse, &self.exact.lse, self.exact.shape), &self.lse);
        let lse = lse.and_then(of_lse);
        Some(Verdict { out, rows: lse.into(), strays: 0 })
    }
}

/// Returns the element with the largest error relative to its tolerance. An element that is not judged counts
/// as right.
fn furthest(
    tensor: &'static str,
    elements: impl Iterator<Item = Element>,
    tolerance: &[f64],
) -> Option<Worst> {
    let all = elements.zip(tolerance).filter_map(|((at, got, want), tolerance)| {
        let (got, tolerance) = if tolerance.is_finite() { (got, *tolerance) } else { (want, f64::MAX) };
        worst(tensor, tolerance, std::iter::once((at, got, want)))
    });
    all.reduce(|a, b| if b.error / b.tolerance > a.error / a.tolerance { b } else { a })
}

impl Head {
    fn new(tensor: &HostTensor, batch: usize, head: usize) -> Self {
        let rows = 0..tensor.shape()[1];
        Head(rows.flat_map(|row| tensor.values(batch, row, head)).map(f64::from).collect())
    }

    fn row(&self, row: usize, columns: usize) -> &[f64] {
        &self.0[row * columns..][..columns]
    }
}

impl<'a> Score<'a> {
    /// Returns the score of a sink, whose values are 0.
    fn sink(logit: f32, values: &'a [f64]) -> Self {
        let value = f64::from(logit);
        Score { value, error: 4.0 * ULP * value.abs(), values }
    }

    /// Computes a score and its error bound. `more` is the sum of slopes and bias, which is added to the
    /// score.
    fn new(p: &Problem, q: &[f64], k: &[f64], values: &'a [f64], more: f64) -> Self {
        let (scale, terms) = (f64::from(p.softmax_scale()), q.len() as f64);
        let products = q.iter().zip(k).map(|(q, k)| q * k);
        let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        // Each addition may err by an ulp.
        let mut error = ((terms + 8.0) * ULP * size + terms * VANISHES) * scale;
        let mut value = sum * scale;
        if let Some(cap) = p.softcap.map(f64::from) {
            value = cap * (value / cap).tanh();
            let absolute = if cap <= MODEST_CAP { 4.0 * ULP } else { VANISHES };
            error = error.min(2.0 * cap) + 16.0 * ULP * value.abs() + absolute * cap;
        }
        value += more;
        error += 8.0 * ULP * more.abs();
        if size >= f64::from(f32::MAX) / 2.0 || value.abs() * LOG2_E >= score_limit(p.dtype) {
            error = f64::INFINITY;
        }
        Score { value, error: error + 4.0 * ULP * value.abs(), values }
    }
}

/// Returns a row's bounds: one per element of O, one for LSE.
fn bound(dtype: DType, scores: &[Score], out: &[f64], lse: f64) -> (Vec<f64>, f64) {
    // Rounding the maximum to nearest multiplies all probabilities by at most this factor.
    let largest = scores.iter().map(|s| s.value.abs()).fold(0.0, f64::max) * LOG2_E;
    let shift = (largest * ULP / 2.0).exp2();
    // The smallest number of the inputs' type, but not below the smallest number that f32 operations do not
    // flush to 0.
    let vanishes = VANISHES.max(2f64.powi(dtype.min_exponent() - dtype.mantissa_bits()));
    let roundoff = unit_roundoff(dtype);
    let keys = scores.len() as f64;
    let lowest = scores.iter().map(|s| s.value - s.error).fold(f64::NEG_INFINITY, f64::max);
    let contends = |s: &Score| s.value + s.error >= lowest - NO_WEIGHT;
    // O is a weighted mean of the values of contending keys. The weights may be wrong by this factor.
    let error = scores.iter().filter(|s| contends(s)).map(|s| s.error).fold(0.0, f64::max);
    let off = (2.0 * error).exp_m1().min(1.0);
    // For each column, three maxima: of the magnitudes of all values, of the magnitudes of contending values,
    // and of the distances of contending values from O.
    let mut columns = vec![[0.0f64; 3]; out.len()];
    for score in scores {
        let contends = contends(score);
        for ((column, value), want) in columns.iter_mut().zip(score.values).zip(out) {
            column[0] = column[0].max(value.abs());
            if contends {
                column[1] = column[1].max(value.abs());
                column[2] = column[2].max((value - want).abs());
            }
        }
    }
    let column = |([any, near, apart], want): (&[f64; 3], &f64)| {
        if any * keys * LAZY * shift >= f64::from(f32::MAX) || error.is_infinite() {
            return f64::INFINITY;
        }
        let sums = (2.0 * roundoff + (keys + 16.0) * ULP) * near;
        let weightless = keys * (vanishes * shift + (-NO_WEIGHT).exp()) * any;
        let least = vanishes + keys * shift * VANISHES;
        off * apart + 2.0 * (sums + roundoff * want.abs() + weightless) + least
    };
    let out = columns.iter().zip(out).map(column).collect();
    let relative = if lse.is_finite() { 16.0 * ULP * lse.abs() } else { 0.0 };
    (out, error + relative + 2.0 * roundoff + keys * vanishes * shift + 1e-4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Memory};
    use ferroflash::plan::Problem;

    fn judge(scale: f32, change: impl Fn(&mut Vec<u16>)) -> Verdict {
        let problem = Problem::new(DType::F16, 1, 40, 2, 16).scale(scale);
        let memory = Memory::random(problem, Layout::Bshd, 1);
        let inputs = memory.inputs().expect("valid");
        let bounds = Bounds::new(&inputs);
        let mut bits = bounds.exact.out_bits(DType::F16);
        change(&mut bits);
        let out = HostTensor::bshd(&bits, DType::F16, [1, 40, 2, 16]).expect("of that shape");
        bounds.judge(&out, None).expect("of that shape")
    }

    #[test]
    fn what_is_right_passes_and_what_is_wrong_does_not() {
        for scale in [1e-30, 0.25, 1e4, 1e6] {
            assert!(judge(scale, |_| {}).passed(), "{scale}: the exact result");
            assert!(!judge(scale, |bits| bits[99] = 0x7e00).passed(), "{scale}: not a number");
            assert!(!judge(scale, |bits| bits[99] = 0x4700).passed(), "{scale}: 7, which no value is");
        }
        for scale in [1e-30, 0.25, 1e4, 1e6] {
            let off = |bits: &mut Vec<u16>| bits.swap(32, 48);
            assert!(!judge(scale, off).passed(), "{scale}: two heads' values are swapped");
        }
    }

    #[test]
    fn rows_beyond_the_limit_of_scores_are_counted() {
        let not_judged = |dtype: DType, scale: f32, softcap: Option<f32>| {
            let problem = Problem::new(dtype, 1, 40, 2, 16).scale(scale).softcap(softcap.unwrap_or_default());
            let memory = Memory::random(problem, Layout::Bshd, 1);
            let bounds = Bounds::new(&memory.inputs().expect("valid"));
            (bounds.not_judged(), bounds.rows())
        };
        // The scores at which rows are no longer judged: the limits divided by log2 e. In bf16, `below` is
        // far below the limit, because sums of bf16 numbers do not come close to it.
        for (dtype, below, beyond) in [(DType::F16, 1.8e8, 1.9e8), (DType::Bf16, 1.2e9, 1.5e9)] {
            assert_eq!(not_judged(dtype, 1e6, None), (0, 80), "{dtype:?}");
            assert_eq!(not_judged(dtype, 1e30, None), (80, 80), "{dtype:?}");
            assert_eq!(not_judged(dtype, 1e30, Some(below)), (0, 80), "{dtype:?}");
            assert_eq!(not_judged(dtype, 1e30, Some(beyond)), (80, 80), "{dtype:?}");
        }
    }
}
