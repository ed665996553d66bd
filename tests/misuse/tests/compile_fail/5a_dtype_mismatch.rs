//! Operands of a product have one element type.
use contract::{Bf16, F16};
use tile::{AFrag, Acc, SharedTile, Warp};

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>, v: &SharedTile<Bf16, 4, 4>, warp: Warp) {
    o.mma_ab(p, v, warp, |_| {});
}

fn main() {}
