//! Nor is a fragment in registers.
use contract::F16;
use tile::{AFrag, Acc, Warp};

fn scores(s: &mut Acc<2, 4>, q: &AFrag<F16, 2, 4>, warp: Warp) {
    s.mma_abt(q, q, warp, |_| {});
}

fn main() {}
