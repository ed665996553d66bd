//! Scores that take the warp of the kernel: with this capability, they could read memory of any description.
use kernels_gpu::prelude::*;
use tile::mma::Acc;

#[derive(Clone, Copy)]
struct Curious;

impl ScoreMarker for Curious {
    type Params = ();
}

impl ScoreMod for Curious {
    fn load(_: &(), _: &Sequence) -> Self {
        Curious
    }
    fn change<const W: usize, const N: usize>(
        &self,
        _: &mut Acc<W, N>,
        _: Option<f32>,
        at: kernels_gpu::variant::blocks::At,
    ) {
        at.warp.lane();
    }
}

fn main() {}
