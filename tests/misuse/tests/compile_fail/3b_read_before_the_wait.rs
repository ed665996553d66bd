//! A read of a pipeline's stage before a wait. Only `advance` returns a stage, and it waits first.
use contract::F16;
use misuse::Running;
use tile::Warp;
use tile::mma::{AFrag, Acc};

fn step(kv: Running, warp: Warp, s: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>) {
    s.mma_ab(p, &kv.v, warp, |_| {});
}

fn main() {}
