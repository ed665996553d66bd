//! A pipeline shows no stage: only `advance`, which waits, hands one out.
use contract::F16;
use misuse::Stage;
use tile::{AFrag, Acc, Pipeline, Warp};

fn step(kv: Pipeline<Stage<F16, 4, 4>, 2>, warp: Warp, s: &mut Acc<2, 4>, q: &AFrag<F16, 2, 4>) {
    s.mma_abt(q, &kv.k, warp, |_| {});
}

fn main() {}
