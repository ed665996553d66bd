//! Weights of another activation than the exponential.
use core::f32::consts::LN_2;
use kernels_gpu::prelude::*;

/// The weight of a key is `max(s, 0) + offset`: the score is its logarithm. With the LSE and the sum of the
/// values, a caller gets the sum of `max(s, 0) * v` from O: `O * exp(LSE) - offset * sum(v)`.
#[derive(Clone, Copy)]
pub struct Relu(f32);

impl ScoreMarker for Relu {
    /// The offset, above 0, and 0.
    type Params = [f32; 2];
}

impl ScoreMod for Relu {
    const ADDITIVE: bool = false;
    fn load([offset, _]: &[f32; 2], _: &Sequence) -> Self {
        Relu(*offset)
    }
    fn score(&self, s: f32, _: i32, _: i32) -> f32 {
        lg2(s.max(0.0) + self.0) * LN_2
    }
    fn gradient(&self, s: f32, _: i32, _: i32) -> f32 {
        if s > 0.0 { rcp(s + self.0) } else { 0.0 }
    }
}
