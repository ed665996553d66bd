//! The first score takes products, and the second one takes scaled products: nothing scales between them.
use kernels_gpu::prelude::*;

#[derive(Clone, Copy)]
struct Shifted;

impl ScoreMarker for Shifted {
    type Params = ();
}

impl ScoreMod for Shifted {
    fn load(_: &(), _: &Sequence) -> Self {
        Shifted
    }
    fn score(&self, s: f32, _: i32, _: i32) -> f32 {
        s + 1.0
    }
}

const _: bool = <(Bias<F16>, Shifted)>::SCALED;

fn main() {}
