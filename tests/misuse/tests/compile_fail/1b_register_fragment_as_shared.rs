//! A tensor-core load from a register fragment. `ldmatrix` reads shared memory only.
use contract::F16;
use tile::Warp;
use tile::mma::{AFrag, Acc};

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>, warp: Warp) {
    o.mma_ab(p, p, warp, |_| {});
}

fn main() {}
