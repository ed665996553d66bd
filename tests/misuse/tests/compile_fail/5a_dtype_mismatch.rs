//! A product of operands with different element types.
use contract::{Bf16, F16};
use tile::Warp;
use tile::mma::{AFrag, Acc};
use tile::shared::SharedTile;

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>, v: &SharedTile<Bf16, 4, 4>, warp: Warp) {
    o.mma_ab(p, v, warp, |_| {});
}

fn main() {}
