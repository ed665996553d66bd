//! Logits that belong to no key, in what is right.
use super::arithmetic::unit_roundoff;
use super::attention::Outputs;
use super::tolerance::Reference;
use ferroflash::DType;

impl Reference {
    /// [`Outputs::add_sinks`] to what is right, with elements of this type.
    pub fn add_sinks(&mut self, dtype: DType, sinks: &[f32]) {
        // Naive attention has no logits of its own: its error says nothing of what they make of one key.
        let largest = self.exact.out.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
        self.tolerance += unit_roundoff(dtype) * largest;
        self.exact.add_sinks(sinks);
    }
}

impl Outputs {
    /// Adds the exponential of its head's logit to the sum of each row. A row without a key has the logit as
    /// its log-sum-exp. A logit of -inf adds nothing.
    pub(super) fn add_sinks(&mut self, sinks: &[f32]) {
        let [_, rows, heads, head_dim] = self.shape;
        for (i, lse) in self.lse.iter_mut().enumerate() {
            let (batch, head, row) = (i / (heads * rows), i / rows % heads, i % rows);
            let (own, sink) = (*lse, f64::from(sinks[head]));
            let max = own.max(sink);
            if max == f64::NEG_INFINITY {
                continue;
            }
            *lse = max + ((own - max).exp() + (sink - max).exp()).ln();
            let weight = (own - *lse).exp();
            let at = ((batch * rows + row) * heads + head) * head_dim;
            self.out[at..][..head_dim].iter_mut().for_each(|x| *x *= weight);
        }
    }
}
