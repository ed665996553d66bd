//! An own form of scores, and of a mask's key blocks, whose functions would receive the warp of the kernel.
use kernels_gpu::variant::blocks::At;
use kernels_gpu::capped::Capped;
use kernels_gpu::prelude::Sequence;
use kernels_gpu::variant::Scores;
use tile::mma::Acc;

#[derive(Clone, Copy)]
struct Curious;

impl Scores for Curious {
    const ADDITIVE: bool = true;
    type Turned = ();
    fn turned(self, _: &Sequence) {}
    fn change<const W: usize, const N: usize>(self, _: &impl Capped, _: &mut Acc<W, N>, _: At) {}
}

fn main() {}
