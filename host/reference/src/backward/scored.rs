//! The mask and the scores of an attention, as its gradients see them.
use super::{BIAS, TABLE};
use crate::attention::Inputs;
use crate::extras::BiasTensor;
use ferroflash::DType;

/// The mask and the scores of an attention.
pub(crate) trait Scored: Sync {
    /// Returns the score of a query `[batch, head, row]` and a key, and its derivative by the scaled product
    /// `product()`. Returns `None` if the query does not see the key.
    fn score(&self, at: [usize; 3], key: usize, product: impl FnOnce() -> f64) -> Option<[f64; 2]>;

    /// Returns the natural logit of the sink of `[batch, head]`, if there is one.
    fn sink(&self, of: [usize; 2]) -> Option<f64>;

    /// Returns the number of entries of the table that the scores read, over all heads; 0 without one.
    fn entries(&self) -> usize {
        0
    }

    /// Returns the name of the gradient of the entries, and its element type.
    fn of_entries(&self) -> (&'static str, DType) {
        (TABLE, DType::F32)
    }

    /// Returns the entry that the score of a query `[batch, head, row]` and a key reads, and the derivative
    /// of the score by it.
    fn entry(&self, _at: [usize; 3], _key: usize) -> Option<(usize, f64)> {
        None
    }

    /// Returns the mask and the scores of sequence `index` of a varlen problem, whose batch is 0. `one` are
    /// the sequence's inputs.
    fn in_sequence(&self, index: usize, one: &Inputs<'_>) -> impl Scored;
}

impl Scored for Inputs<'_> {
    fn score(&self, at: [usize; 3], key: usize, product: impl FnOnce() -> f64) -> Option<[f64; 2]> {
        let [batch, head, row] = at;
        let (bias, slope) = (f64::from(self.bias(at, key)), f64::from(self.slope(batch, head)));
        // A bias of -inf hides the key. One of NaN does not.
        let sees =
            self.visible([batch, row]).contains(&key) && self.bit(at, key) && bias != f64::NEG_INFINITY;
        sees.then(|| {
            let product = product();
            let (score, derivative) = self.problem().softcap.map_or((product, 1.0), |cap| {
                let tanh = (product / f64::from(cap)).tanh();
                (f64::from(cap) * tanh, 1.0 - tanh * tanh)
            });
            let distance = self.position(row).abs_diff(key as i64);
            [score - slope * distance as f64 + bias, derivative]
        })
    }

    fn sink(&self, [_, head]: [usize; 2]) -> Option<f64> {
        self.sinks().map(|sinks| sinks[head].into())
    }

    /// The entries are the elements of the bias.
    fn entries(&self) -> usize {
        self.bias_tensor().map_or(0, |bias| bias.shape().iter().product())
    }

    fn of_entries(&self) -> (&'static str, DType) {
        (BIAS, self.bias_tensor().map_or(DType::F32, BiasTensor::dtype))
    }

    fn entry(&self, at: [usize; 3], key: usize) -> Option<(usize, f64)> {
        Some((self.bias_index(at, key)?, 1.0))
    }

    fn in_sequence(&self, _: usize, one: &Inputs<'_>) -> impl Scored {
        *one
    }
}
