//! A product whose A operand has another number of columns than the B operand has rows.
use contract::F16;
use tile::Warp;
use tile::mma::{AFrag, Acc};
use tile::shared::SharedTile;

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 3>, v: &SharedTile<F16, 4, 4>, warp: Warp) {
    o.mma_ab(p, v, warp, |_| {});
}

fn main() {}
