//! A tensor-core load (`ldmatrix`) from an array in registers. `ldmatrix` reads shared memory only.
use contract::F16;
use tile::Warp;
use tile::mma::{AFrag, Acc};

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>, warp: Warp) {
    let v = [0u32; 64];
    o.mma_ab(p, &v, warp, |_| {});
}

fn main() {}
