//! Attention with the roundings of [`Precision::Int8Fp8`], and otherwise in f64. docs/design/eight-bits.md
//! has the rules. The tolerance of kernels of this precision comes from it, as FlashAttention's tolerance
//! comes from naive attention in 16 bits.
//!
//! [`Precision::Int8Fp8`]: ferroflash::request::Precision::Int8Fp8
use super::attention::{Inputs, Outputs};
use super::e4m3;
use rayon::prelude::*;

/// Number of keys whose mean is subtracted from all keys.
const SAMPLES: usize = 64;
/// Keys of a block. A block's values have one scale, and its probabilities are relative to the block's
/// largest.
const BLOCK: usize = 64;
/// The largest probability of a block, as an e4m3.
const TOP: f64 = 256.0;

/// The integers of a row times their scale.
fn rounded(row: Vec<f64>) -> Vec<f64> {
    let scale = row.iter().fold(0.0, |most: f64, x| most.max(x.abs())) / 127.0;
    let round = |x: f64| if scale > 0.0 { (x / scale).round_ties_even() * scale } else { 0.0 };
    row.into_iter().map(round).collect()
}

/// Keys and values of one head.
struct Head {
    mean: Vec<f64>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

impl Head {
    fn new(inputs: &Inputs, batch: usize, head: usize) -> Self {
        let [_, count, _, columns] = inputs.k().shape();
        let row = |key| inputs.k().values(batch, key, head).map(f64::from);
        let samples = count.min(SAMPLES);
        let mut mean = vec![0.0; columns];
        for sample in 0..samples {
            mean.iter_mut().zip(row(sample * count / samples)).for_each(|(m, x)| *m += x / samples as f64);
        }
        let keys = (0..count).map(|key| rounded(row(key).zip(&mean).map(|(x, m)| x - m).collect())).collect();
        let rows: Vec<Vec<f64>> =
            (0..count).map(|key| inputs.v().values(batch, key, head).map(f64::from).collect()).collect();
        let values = rows.chunks(BLOCK).flat_map(|block| {
            let most = block.iter().flatten().fold(0.0, |most: f64, x| most.max(x.abs()));
            let scale = if most > 0.0 { most / 448.0 } else { 1.0 };
            let round = move |x: &f64| f64::from(e4m3::decode(e4m3::encode(x / scale))) * scale;
            block.iter().map(move |row| row.iter().map(round).collect()).collect::<Vec<_>>()
        });
        Head { values: values.collect(), mean, keys }
    }

    /// O and LSE of a query that sees keys `visible`.
    fn row(&self, q: &[f64], visible: std::ops::Range<usize>, scale: f64) -> (Vec<f64>, f64) {
        let (integers, dot) = (rounded(q.to_vec()), |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).map(|(a, b)| a * b).sum()
        });
        let (mut o, mut sum, mut top) = (vec![0.0; self.values[0].len()], 0.0, f64::NEG_INFINITY);
        for first in (0..self.keys.len()).step_by(BLOCK).rev() {
            let seen = visible.start.max(first)..visible.end.min(first + BLOCK);
            let scores: Vec<_> = seen.clone().map(|key| dot(&integers, &self.keys[key]) * scale).collect();
            let Some(own) = scores.iter().copied().reduce(f64::max) else { continue };
            let new = own.max(top);
            let (old, weight) = ((top - new).exp(), (own - new).exp());
            (top, sum) = (new, sum * old);
            o.iter_mut().for_each(|x| *x *= old);
            for (score, key) in scores.iter().zip(seen) {
                let p = (score - own).exp();
                let rounded = f64::from(e4m3::decode(e4m3::encode(p * TOP))) / TOP;
                sum += weight * p;
                o.iter_mut().zip(&self.values[key]).for_each(|(o, v)| *o += weight * rounded * v);
            }
        }
        if sum == 0.0 {
            return (o, f64::NEG_INFINITY);
        }
        (o.into_iter().map(|x| x / sum).collect(), top + sum.ln() + dot(q, &self.mean) * scale)
    }
}

/// Computes attention with full or causal masks.
pub(super) fn int8_fp8(inputs: &Inputs) -> Outputs {
    let [batches, rows, heads, _] = inputs.q().shape();
    let [_, _, kv_heads, columns] = inputs.v().shape();
    let scale = f64::from(inputs.problem().softmax_scale());
    let kv: Vec<_> = (0..batches * kv_heads)
        .into_par_iter()
        .map(|i| Head::new(inputs, i / kv_heads, i % kv_heads))
        .collect();
    let results: Vec<_> = (0..batches * rows * heads)
        .into_par_iter()
        .map(|i| {
            let (batch, row, head) = (i / heads / rows, i / heads % rows, i % heads);
            let q: Vec<_> = inputs.q().values(batch, row, head).map(f64::from).collect();
            let kv = &kv[batch * kv_heads + head / (heads / kv_heads)];
            (kv.row(&q, inputs.visible([batch, row]), scale), (batch * heads + head) * rows + row)
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
    use crate::arithmetic::{decode, encode};
    use crate::attention::without_sinks;
    use crate::inputs::Random;
    use crate::tensor::HostTensor;
    use crate::tolerance::Reference;
    use ferroflash::DType;
    use ferroflash::plan::Problem;
    use ferroflash::request::{Mask, Precision};

    /// Calls `f` with normal inputs of 9 queries and 512 keys. With `equal`, all scores are equal, and values
    /// are positive.
    fn with(head_dim: usize, equal: bool, f: impl Fn(&Inputs)) {
        let dtype = DType::F16;
        let p = Problem::new(dtype, 1, 9, 2, head_dim).seqlen_k(512).heads_k(1).mask(Mask::Causal);
        let (p, mut random) = (p.precision(Precision::Int8Fp8), Random::new(1));
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
        for (head_dim, equal, most) in
            [(64, false, 0.05), (128, false, 0.05), (64, true, 0.004), (128, true, 0.004)]
        {
            with(head_dim, equal, |inputs| {
                let [rounded, exact] = [int8_fp8(inputs), without_sinks(inputs)];
                let error: f64 = rounded.out.iter().zip(&exact.out).map(|(a, b)| (a - b).abs()).sum();
                let all: f64 = exact.out.iter().map(|x| x.abs()).sum();
                assert!(error <= most * all, "head dim {head_dim}, equal {equal}: {}", error / all);
                assert!(error > 0.0, "head dim {head_dim}: no rounding");
            });
        }
    }

    /// Tensor cores that add all keys in one accumulator give results that are 1 to 4 % too small.
    #[test]
    fn results_that_are_too_small_by_a_factor_fail() {
        with(64, true, |inputs| {
            let (reference, rounded) = (Reference::new(inputs), int8_fp8(inputs));
            for (factor, passes) in [(1.0, true), (0.99, false)] {
                let bits: Vec<_> = rounded.out.iter().map(|x| encode(DType::F16, x * factor)).collect();
                let out = HostTensor::bshd(&bits, DType::F16, rounded.shape).expect("a tensor of this shape");
                let verdict = reference.judge(&out, None).expect("equal shapes");
                assert_eq!(verdict.passed(), passes, "factor {factor}: {verdict:?}");
            }
        });
    }
}
