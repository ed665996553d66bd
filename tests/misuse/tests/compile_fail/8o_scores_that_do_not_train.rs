//! A backward kernel of a score without its derivative. The score is not its product and a number.
use kernels_gpu::exact::{gradient, sequence};
use kernels_gpu::prelude::*;

#[derive(Clone, Copy)]
struct Squared;

impl ScoreMarker for Squared {
    type Params = ();
}

impl ScoreMod for Squared {
    const ADDITIVE: bool = false;
    fn load(_: &(), _: &Sequence) -> Self {
        Squared
    }
    fn score(&self, s: f32, _: i32, _: i32) -> f32 {
        s * s
    }
}

fn main() {
    gradient::<Scored<Full, Squared>>(&And::new((), ()), &sequence(0, 0, [1, 1], 1.0), 1.0, 0, 0);
}
