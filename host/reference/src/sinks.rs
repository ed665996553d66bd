//! Attention sinks, applied to the reference.
use super::arithmetic::unit_roundoff;
use super::attention::Outputs;
use super::tolerance::Reference;
use ferroflash::DType;

impl Reference {
    /// Adds the exponential of a head's sink to the sum of each row of the head. O is in `dtype`. The LSE of
    /// a row without a key becomes the sink. A sink of -inf adds nothing.
    pub fn add_sinks(&mut self, dtype: DType, sinks: &[f32]) {
        // Naive attention is computed without sinks, so its error does not include the sink's effect on O.
        let largest = self.exact.out.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
        self.tolerance += unit_roundoff(dtype) * largest;
        self.exact.add_sinks(sinks);
    }
}

impl Outputs {
    /// Adds sinks to O and LSE.
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
