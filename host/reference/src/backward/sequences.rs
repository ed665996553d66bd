//! The gradients of varlen sequences.
use super::{Gradients, SummedGradient};
use crate::attention::Inputs;
use crate::sequences::Sequences;
use std::ops::Range;

/// Computes the gradients of each sequence by itself. Rows of no sequence have gradients of 0, and so have
/// keys that their sequence does not use.
pub(super) fn gradients(
    inputs: &Inputs<'_>,
    sequences: &Sequences,
    of_one: impl Fn(usize, &Inputs<'_>, &Range<usize>) -> Gradients,
) -> Gradients {
    let shapes = [inputs.q(), inputs.k(), inputs.v()].map(|tensor| tensor.shape());
    let values = shapes.map(|shape| vec![0.0; shape.iter().product()]);
    let sinks = inputs.sinks().map(|_| vec![SummedGradient::default(); shapes[0][2]]);
    let mut all = Gradients { values, sums: [0.0; 3], sinks, table: vec![] };
    for sequence in 0..sequences.count() {
        let (queries, keys) = (sequences.queries(sequence), sequences.keys(sequence));
        let one = of_one(sequence, &inputs.sequence(sequence, queries.clone(), keys.clone()), &queries);
        for (of, rows) in [&queries, &keys, &keys].into_iter().enumerate() {
            let row = shapes[of][2] * shapes[of][3];
            all.values[of][rows.start * row..rows.end * row].copy_from_slice(&one.values[of]);
            all.sums[of] = all.sums[of].max(one.sums[of]);
        }
        let pairs = all.sinks.iter_mut().flatten().zip(one.sinks.iter().flatten());
        pairs.for_each(|(all, one)| all.add(one));
        all.table.resize(one.table.len(), SummedGradient::default());
        all.table.iter_mut().zip(&one.table).for_each(|(all, one)| all.add(one));
    }
    all
}
