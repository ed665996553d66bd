//! `ldmatrix` reads shared memory: an array in registers is none.
use contract::F16;
use tile::{AFrag, Acc, Warp};

fn scores(s: &mut Acc<2, 4>, q: &AFrag<F16, 2, 4>, warp: Warp) {
    let k = [0u32; 64];
    s.mma_abt(q, &k, warp, |_| {});
}

fn main() {}
