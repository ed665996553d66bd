//! The gradients of one key head.
use super::{Scored, SummedGradient, Upstream};
use crate::attention::Inputs;
use crate::tensor::HostTensor;
use std::collections::BTreeMap;

/// The gradients of a key head: of the rows of its query heads, and of its keys and values.
pub(super) struct OfHead {
    pub dq: Vec<Vec<f64>>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
    pub sums: [f64; 3],
    /// The gradients of the sinks of the query heads.
    pub sinks: Vec<SummedGradient>,
    /// The parts of the gradients of the table's entries, by entry.
    pub table: BTreeMap<usize, SummedGradient>,
}

/// Computes the gradients of a key head `[batch, head]`.
pub(super) fn of_head(
    scored: &impl Scored,
    inputs: &Inputs<'_>,
    upstream: &Upstream<'_>,
    [batch, kv_head]: [usize; 2],
    round: impl Fn(f64) -> f64,
) -> OfHead {
    let [_, queries, heads, d] = inputs.q().shape();
    let [_, keys, kv_heads, dv] = inputs.v().shape();
    let scale = f64::from(inputs.problem().softmax_scale());
    let rows = |tensor: HostTensor<'_>, rows: usize, head: usize| -> Vec<f64> {
        (0..rows).flat_map(|row| tensor.values(batch, row, head)).map(f64::from).collect()
    };
    let [k, v] = [inputs.k(), inputs.v()].map(|tensor| rows(tensor, keys, kv_head));
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let magnitude = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum() };
    let add = |to: &mut [f64], factor: f64, of: &[f64]| {
        to.iter_mut().zip(of).for_each(|(to, x)| *to += factor * x);
    };
    let add_magnitudes = |to: &mut [f64], factor: f64, of: &[f64]| {
        to.iter_mut().zip(of).for_each(|(to, x)| *to += factor * x.abs());
    };
    let largest = |sums: &[f64]| sums.iter().copied().fold(0.0, f64::max);
    let [of_keys, of_values] = [d, dv].map(|columns| vec![0.0; keys * columns]);
    let (mut dk_sums, mut dv_sums, table) = (of_keys.clone(), of_values.clone(), BTreeMap::new());
    let mut of = OfHead { dq: vec![], dk: of_keys, dv: of_values, sums: [0.0; 3], sinks: vec![], table };
    for head in kv_head * (heads / kv_heads)..(kv_head + 1) * (heads / kv_heads) {
        let (q, d_o) = (rows(inputs.q(), queries, head), rows(upstream.d_o, queries, head));
        let [mut dq, mut dk, mut dv_own] =
            [queries * d, keys * d, keys * dv].map(|elements| vec![0.0; elements]);
        let (sink, mut d_sink) = (scored.sink([batch, head]), SummedGradient::default());
        for row in 0..queries {
            let (q, d_o) = (&q[row * d..][..d], &d_o[row * dv..][..dv]);
            let at = [batch, head, row];
            let score = |key: usize| {
                let product = || round(dot(q, &k[key * d..][..d]) * scale);
                scored.score(at, key, product).map(|[score, derivative]| (key, (score, derivative)))
            };
            // The scores, and the derivatives of their modification.
            let (seen, scores): (Vec<_>, Vec<_>) = (0..keys).filter_map(score).unzip();
            let all = || scores.iter().map(|(score, _)| *score).chain(sink);
            let max = all().fold(f64::NEG_INFINITY, f64::max);
            if seen.is_empty() && max == f64::NEG_INFINITY {
                continue; // the row sees neither a key nor a sink
            }
            let sum: f64 = all().map(|score| (score - max).exp()).sum();
            let p: Vec<_> = scores.iter().map(|(score, _)| round((score - max).exp() / sum)).collect();
            let mut o = vec![0.0; dv];
            seen.iter().zip(&p).for_each(|(&key, p)| add(&mut o, *p, &v[key * dv..][..dv]));
            o.iter_mut().for_each(|x| *x = round(*x));
            let d_lse = upstream.d_lse.map_or(0.0, |all| all[(batch * heads + head) * queries + row].into());
            let (delta, of_o) = (dot(d_o, &o) - d_lse, magnitude(d_o, &o) + d_lse.abs());
            let root = d_o.iter().zip(&o).map(|(d_o, o)| (d_o * o).powi(2)).sum::<f64>().sqrt();
            if let Some(p) = sink.map(|sink| round((sink - max).exp() / sum)) {
                d_sink.value += round(-p * delta);
                d_sink.sum += p * of_o;
                d_sink.root = d_sink.root.hypot(p * root);
            }
            let (mut dq_sums, mut of_row) = (vec![0.0; d], BTreeMap::new());
            for ((&key, p), (_, derivative)) in seen.iter().zip(&p).zip(&scores) {
                let (own_k, own_v) = (&k[key * d..][..d], &v[key * dv..][..dv]);
                let dp = round(dot(d_o, own_v));
                let ds = scale * round(p * (dp - delta) * derivative);
                let most = p * (magnitude(d_o, own_v) + of_o);
                if let Some((entry, weight)) = scored.entry(at, key) {
                    let of_row: &mut SummedGradient = of_row.entry(entry).or_default();
                    of_row.value += round(p * (dp - delta)) * weight;
                    of_row.sum += most * weight.abs();
                    // The errors of the row's delta are equal for all of its keys.
                    of_row.root += p * weight.abs() * root;
                }
                add(&mut dq[row * d..][..d], ds, own_k);
                add(&mut dk[key * d..][..d], ds, q);
                add(&mut dv_own[key * dv..][..dv], *p, d_o);
                add_magnitudes(&mut dq_sums, most * scale, own_k);
                add_magnitudes(&mut dk_sums[key * d..][..d], most * scale, q);
                add_magnitudes(&mut dv_sums[key * dv..][..dv], *p, d_o);
            }
            of.sums[0] = of.sums[0].max(largest(&dq_sums));
            of_row.iter().for_each(|(entry, own)| of.table.entry(*entry).or_default().add(own));
        }
        // As in FlashAttention-2, a head's gradients are tensors, whose sum over heads is another one.
        for (sum, own) in [(&mut of.dk, &dk), (&mut of.dv, &dv_own)] {
            sum.iter_mut().zip(own).for_each(|(sum, x)| *sum += round(*x));
        }
        of.dq.push(dq);
        of.sinks.push(d_sink);
    }
    of.sums[1..].copy_from_slice(&[largest(&dk_sums), largest(&dv_sums)]);
    of
}
