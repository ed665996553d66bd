//! Attention with the roundings of [`Precision::Int8F16`], [`Precision::Int8Fp8`] and [`Precision::Fp8`], and
//! otherwise in f64.
//! docs/design/eight-bits.md has the rules. The tolerance of kernels of these precisions comes from it, as
//! FlashAttention's tolerance comes from naive attention in 16 bits.
mod mean;

use super::attention::{Inputs, Outputs, each_sequence};
use super::e4m3;
use crate::arithmetic::{decode, encode};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::Precision;
use mean::mean;
use rayon::prelude::*;

/// The roundings of a precision.
struct Rules {
    /// Whether Q, K and V are rounded first, and keys lose their mean. Tensors of e4m3 stay as they are.
    rounds: bool,
    /// Whether scores are products of int8, with one scale per row. Otherwise they are products of e4m3, with
    /// one scale per head.
    integers: bool,
    /// Keys of a block.
    block: usize,
    /// Keys whose values have one scale.
    values: usize,
    /// The dtype of probabilities and values.
    products: DType,
    /// The largest probability, in this dtype, at a new reference.
    top: f64,
    /// The reference of probabilities rises if a block's largest score exceeds it by more than this number.
    slack: f64,
    /// A factor of the scales of Q and K of e4m3, from 1 to 2.
    stretch: f64,
}

impl Rules {
    fn of(problem: &Problem, stretch: f64) -> Self {
        let rounds = problem.dtype != DType::E4m3;
        match problem.precision {
            // Rounding errors of 16 bits do not depend on the reference.
            Precision::Int8F16 => Rules {
                rounds,
                integers: true,
                block: 64,
                values: 0,
                products: problem.dtype,
                top: 1.0,
                slack: 0.0,
                stretch,
            },
            // Each block has its own reference.
            Precision::Int8Fp8 => Rules {
                rounds,
                integers: true,
                block: 64,
                values: 64,
                products: DType::E4m3,
                top: 256.0,
                slack: f64::NEG_INFINITY,
                stretch,
            },
            // Kernels also raise the reference if a sum of probabilities does not prove that they fit.
            _ => Rules {
                rounds,
                integers: false,
                block: if problem.columns().iter().any(|columns| *columns > 128) { 64 } else { 128 },
                values: usize::MAX,
                products: DType::E4m3,
                top: 16.0,
                slack: (f64::from(e4m3::MAX) / 16.0).ln(),
                stretch,
            },
        }
    }

    /// The score of a query and a key.
    fn score(&self, q: &[f64], k: &[f64]) -> f64 {
        match self.integers {
            true => dot(q, k),
            false => cut_sum(q, k),
        }
    }

    /// Rows of Q or K, rounded.
    fn rounded(&self, mut rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        match self.integers {
            _ if !self.rounds => {}
            true => rows.iter_mut().for_each(|row| integers(row)),
            false => floats(&mut rows, self.stretch),
        }
        rows
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Number of products that tensor cores add in one step.
const STEP: usize = 32;

/// The sum of products as Hopper's tensor cores compute it: they add 32 products and the accumulator, and
/// cut each of them to 13 bits behind the exponent of the largest. Every test of kernels with such products
/// spends most of its time here.
fn cut_sum(a: &[f64], b: &[f64]) -> f64 {
    a.chunks(STEP).zip(b.chunks(STEP)).fold(0.0, |sum, (a, b)| {
        let mut terms = [0.0; STEP + 1];
        terms[STEP] = sum;
        for (term, (a, b)) in terms.iter_mut().zip(a.iter().zip(b)) {
            *term = a * b;
        }
        // The bits of magnitudes have the order of the magnitudes.
        let largest = terms.iter().fold(0, |largest: u64, x| largest.max(x.abs().to_bits()));
        let exponent = (largest >> 52) as i32 - 1023;
        if largest == 0 || exponent == 1024 {
            return if largest == 0 { 0.0 } else { f64::NAN };
        }
        let unit = f64::from(exponent - 13).exp2();
        // A whole number of units has 14 bits.
        f64::from(terms.iter().map(|x| (x / unit) as i32).sum::<i32>()) * unit
    })
}

/// Rounds a probability.
fn rounded_to(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::E4m3 => f64::from(e4m3::decode(e4m3::encode(x))),
        _ => f64::from(decode(dtype, encode(dtype, x))),
    }
}

/// Rounds a row to integers times their scale.
fn integers(row: &mut [f64]) {
    let scale = row.iter().fold(0.0, |most: f64, x| most.max(x.abs())) / 127.0;
    row.iter_mut().for_each(|x| *x = if scale > 0.0 { (*x / scale).round_ties_even() * scale } else { 0.0 });
}

/// Rounds rows to e4m3 times their scale, which is `stretch` times as large as it must be.
fn floats(rows: &mut [Vec<f64>], stretch: f64) {
    let most = rows.iter().flatten().fold(0.0, |most: f64, x| most.max(x.abs()));
    let scale = if most > 0.0 { stretch * most / f64::from(e4m3::MAX) } else { 1.0 };
    for x in rows.iter_mut().flatten() {
        *x = f64::from(e4m3::decode(e4m3::encode(*x / scale))) * scale;
    }
}

/// The queries, keys and values of one key head.
struct Head {
    rules: Rules,
    mean: Vec<f64>,
    /// The queries of all heads of the group, before and after rounding.
    queries: [Vec<Vec<f64>>; 2],
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    /// Columns of values.
    columns: usize,
}

impl Head {
    fn new(inputs: &Inputs, batch: usize, head: usize, stretch: f64) -> Self {
        let rules = Rules::of(inputs.problem(), stretch);
        let ([_, count, heads, columns], [_, rows, heads_q, _]) = (inputs.k().shape(), inputs.q().shape());
        let row = |key| inputs.k().values(batch, key, head).map(f64::from);
        // Hopper's kernels with a softcap compute it from the scores of whole keys.
        let keeps = !rules.rounds || inputs.has_operands();
        let keeps_mean = keeps || !rules.integers && inputs.problem().softcap.is_some();
        let mean = if keeps_mean { vec![0.0; columns] } else { mean(count, columns, row) };
        let less = |key| row(key).zip(&mean).map(|(x, m)| x - m).collect();
        let keys = (0..count).map(less).collect();
        let keys = if keeps { keys } else { rules.rounded(keys) };
        let group = heads_q / heads;
        let query = |i: usize| inputs.q().values(batch, i / group, head * group + i % group).map(f64::from);
        let queries: Vec<Vec<f64>> = (0..rows * group).map(|i| query(i).collect()).collect();
        let mut values: Vec<Vec<f64>> =
            (0..count).map(|key| inputs.v().values(batch, key, head).map(f64::from).collect()).collect();
        // Values of an int8 cache become e4m3.
        let stay = !rules.rounds || inputs.has_operands() && !rules.integers;
        if !stay && rules.products == DType::E4m3 {
            values.chunks_mut(rules.values).for_each(|values| floats(values, 1.0));
        }
        let columns = inputs.v().shape()[3];
        Head { queries: [queries.clone(), rules.rounded(queries)], rules, mean, keys, values, columns }
    }

    /// O and LSE of query `query` of the group, which sees keys `visible`. `changed` is the score of a key,
    /// of a scaled product.
    fn row(
        &self,
        query: usize,
        visible: std::ops::Range<usize>,
        scale: f64,
        changed: impl Fn(f64, usize) -> f64,
    ) -> (Vec<f64>, f64) {
        let Rules { block, products, top: of_top, slack, .. } = self.rules;
        let [q, rounded] = [0, 1].map(|i| &self.queries[i][query]);
        let of_mean = dot(q, &self.mean) * scale;
        let score = |key: usize| changed(self.rules.score(rounded, &self.keys[key]) * scale + of_mean, key);
        let (mut o, mut sum) = (vec![0.0; self.columns], 0.0);
        let [mut reference, mut top] = [f64::NEG_INFINITY; 2];
        for first in (0..self.keys.len()).step_by(block).rev() {
            let seen = visible.start.max(first)..visible.end.min(first + block);
            let scores: Vec<_> = seen.clone().map(score).collect();
            let Some(own) = scores.iter().copied().reduce(f64::max) else { continue };
            if own > reference + slack || reference == f64::NEG_INFINITY {
                reference = own;
            }
            let new = reference.max(top);
            let (old, weight) = ((top - new).exp(), (reference - new).exp());
            (top, sum) = (new, sum * old);
            o.iter_mut().for_each(|x| *x *= old);
            for (score, key) in scores.iter().zip(seen) {
                let p = (score - reference).exp();
                let rounded = rounded_to(products, p * of_top) / of_top;
                sum += weight * p;
                o.iter_mut().zip(&self.values[key]).for_each(|(o, v)| *o += weight * rounded * v);
            }
        }
        if sum == 0.0 {
            return (o, f64::NEG_INFINITY);
        }
        (o.into_iter().map(|x| x / sum).collect(), top + sum.ln())
    }
}

/// Computes attention of the inputs' precision, with windows, softcap and slopes. Scales of Q and K of e4m3
/// are `stretch` times as large as they must be: where a kernel has one scale for several sequences, it is
/// the scale of the largest one.
pub(super) fn eight_bits(inputs: &Inputs, stretch: f64) -> Outputs {
    if let Some(sequences) = inputs.sequences {
        return each_sequence(inputs, sequences, |inputs| eight_bits(inputs, stretch));
    }
    let [batches, rows, heads, _] = inputs.q().shape();
    let [_, _, kv_heads, columns] = inputs.v().shape();
    let (scale, group) = (f64::from(inputs.problem().softmax_scale()), heads / kv_heads);
    let kv: Vec<_> = (0..batches * kv_heads)
        .into_par_iter()
        .map(|i| Head::new(inputs, i / kv_heads, i % kv_heads, stretch))
        .collect();
    let results: Vec<_> = (0..batches * rows * heads)
        .into_par_iter()
        .map(|i| {
            let (batch, row, head) = (i / heads / rows, i / heads % rows, i % heads);
            let kv = &kv[batch * kv_heads + head / group];
            let (slope, position) = (f64::from(inputs.slope(batch, head)), inputs.position(row));
            let cap = inputs.problem().softcap.map(f64::from);
            let changed = |score: f64, key: usize| {
                let capped = cap.map_or(score, |cap| (score / cap).tanh() * cap);
                capped - slope * position.abs_diff(key as i64) as f64
            };
            let result = kv.row(row * group + head % group, inputs.visible([batch, row]), scale, changed);
            (result, (batch * heads + head) * rows + row)
        })
        .collect();
    let mut outputs = Outputs::without_keys([batches, rows, heads, columns]);
    for (i, ((o, lse), at)) in results.into_iter().enumerate() {
        outputs.out[i * columns..][..columns].copy_from_slice(&o);
        outputs.lse[at] = lse;
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::without_sinks;
    use crate::inputs::Random;
    use crate::tensor::HostTensor;
    use crate::tolerance::Reference;
    use ferroflash::request::Mask;

    /// Calls `f` with normal inputs of 9 queries and 512 keys. With `equal`, all scores are equal, and values
    /// are positive.
    fn with(precision: Precision, head_dim: usize, equal: bool, f: impl Fn(&Inputs)) {
        let dtype = DType::F16;
        let p = Problem::new(dtype, 1, 9, 2, head_dim).seqlen_k(512).heads_k(1).mask(Mask::Causal);
        let (p, mut random) = (p.precision(precision), Random::new(1));
        let [q, k, v, _] = p.shapes().map(|shape| random.normals(dtype, shape.iter().product()));
        let no = |bits: Vec<u16>| if equal { vec![0; bits.len()] } else { bits };
        let positive = |bits: &u16| encode(dtype, f64::from(decode(dtype, *bits).abs()) + 0.2);
        let (q, v) = (no(q), if equal { v.iter().map(positive).collect() } else { v });
        let [shape_q, shape_k, shape_v, _] = p.shapes();
        let of = |bits, shape| HostTensor::bshd(bits, dtype, shape).expect("a tensor of this shape");
        f(&Inputs::new(p, of(&q, shape_q), of(&k, shape_k), of(&v, shape_v)).expect("they go together"));
    }

    #[test]
    fn errors_stay_within_the_class() {
        let (int8, int8_f16, fp8) = (Precision::Int8Fp8, Precision::Int8F16, Precision::Fp8);
        for (precision, head_dim, equal, most) in [
            (int8_f16, 64, false, 0.015),
            (int8_f16, 128, false, 0.015),
            (int8_f16, 64, true, 0.001),
            (int8, 64, false, 0.05),
            (int8, 128, false, 0.05),
            (int8, 64, true, 0.004),
            (int8, 128, true, 0.004),
            (fp8, 128, false, 0.06),
            (fp8, 128, true, 0.006),
            (fp8, 256, false, 0.06),
            (fp8, 256, true, 0.006),
        ] {
            with(precision, head_dim, equal, |inputs| {
                let [rounded, exact] = [eight_bits(inputs, 1.0), without_sinks(inputs)];
                let error: f64 = rounded.out.iter().zip(&exact.out).map(|(a, b)| (a - b).abs()).sum();
                let all: f64 = exact.out.iter().map(|x| x.abs()).sum();
                assert!(
                    error <= most * all,
                    "{precision:?}, head dim {head_dim}, equal {equal}: {}",
                    error / all
                );
                assert!(error > 0.0, "head dim {head_dim}: no rounding");
            });
        }
    }

    /// Tensor cores that add all keys in one accumulator give results that are 1 to 4 % too small.
    #[test]
    fn sums_of_e4m3_keep_13_bits() {
        let small = |exponent: f64| cut_sum(&[1.0, exponent.exp2()], &[1.0, 1.0]);
        assert_eq!([small(-14.0), small(-13.0)], [1.0, 1.0 + (-13f64).exp2()]);
        assert_eq!((cut_sum(&[0.0], &[5.0]), cut_sum(&[-3.0, 1.5], &[1.0, 2.0])), (0.0, 0.0));
        // The next 32 products are added to the sum.
        let (mut many, ones) = (vec![0.0; 33], vec![1.0; 33]);
        (many[0], many[32]) = (1.0, 0.5);
        assert_eq!(cut_sum(&many, &ones), 1.5);
    }

    #[test]
    fn sums_are_cut_term_by_term() {
        let exponent = |x: &f64| x.abs().log2().floor();
        let mut random = Random::new(1);
        for length in [1, 31, 32, 33, 64, 100, 128] {
            let mut draw = || -> Vec<f64> {
                let bits = random.normals(DType::E4m3, length);
                bits.into_iter().map(|bits| f64::from(decode(DType::E4m3, bits)) * 0.37).collect()
            };
            for _ in 0..50 {
                let [a, b] = [draw(), draw()];
                let sum = a.chunks(32).zip(b.chunks(32)).fold(0.0, |sum, (a, b)| {
                    let terms: Vec<_> = a.iter().zip(b).map(|(a, b)| a * b).chain([sum]).collect();
                    let exponents = terms.iter().filter(|x| **x != 0.0).map(exponent);
                    let unit = exponents.reduce(f64::max).map_or(1.0, |largest| (largest - 13.0).exp2());
                    terms.iter().map(|x| (x / unit).trunc()).sum::<f64>() * unit
                });
                assert_eq!(cut_sum(&a, &b), sum, "{a:?} {b:?}");
            }
        }
        assert_eq!(cut_sum(&[0.0; 40], &[1.0; 40]), 0.0);
        for x in [f64::INFINITY, f64::NAN] {
            assert!(cut_sum(&[1.0, x], &[1.0, 1.0]).is_nan());
        }
    }

    /// Without scores and without roundings of values, O has one rounding: that of its dtype.
    #[test]
    fn the_rounded_exact_result_of_equal_scores_of_e4m3_passes() {
        let (e4m3, dtype) = (DType::E4m3, DType::Bf16);
        let mut p = Problem::new(e4m3, 1, 64, 2, 128).seqlen_k(65).precision(Precision::Fp8);
        p.o_dtype = dtype;
        let [of_q, of_k, of_v, of_o] = p.shapes();
        let mut random = Random::new(1);
        let [q, k, v] = [of_q, of_k, of_v].map(|shape| random.normals(e4m3, shape.iter().product()));
        let of = |bits, shape| HostTensor::bshd(bits, e4m3, shape).expect("a tensor of this shape");
        let zeros = vec![0; q.len()];
        let inputs = Inputs::new(p, of(&zeros, of_q), of(&k, of_k), of(&v, of_v)).expect("they go together");
        let reference = Reference::new(&inputs);
        for (factor, passes) in [(1.0, true), (0.97, false)] {
            let bits: Vec<_> = reference.exact.out.iter().map(|x| encode(dtype, x * factor)).collect();
            let out = HostTensor::bshd(&bits, dtype, of_o).expect("a tensor of this shape");
            let verdict = reference.judge(&out, None).expect("equal shapes");
            assert_eq!(verdict.passed(), passes, "factor {factor}: {verdict:?}");
        }
    }

    #[test]
    fn results_that_are_too_small_by_a_factor_fail() {
        with(Precision::Int8Fp8, 64, true, |inputs| {
            let (reference, rounded) = (Reference::new(inputs), eight_bits(inputs, 1.0));
            for (factor, passes) in [(1.0, true), (0.99, false)] {
                let bits: Vec<_> = rounded.out.iter().map(|x| encode(DType::F16, x * factor)).collect();
                let out = HostTensor::bshd(&bits, DType::F16, rounded.shape).expect("a tensor of this shape");
                let verdict = reference.judge(&out, None).expect("equal shapes");
                assert_eq!(verdict.passed(), passes, "factor {factor}: {verdict:?}");
            }
        });
    }
}
