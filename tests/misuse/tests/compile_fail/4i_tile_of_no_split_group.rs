//! A stage's tile selected by a number. Only a split group selects its tile.
use contract::F16;
use tile::Warp;
use tile::mma::{AFrag, Acc};
use tile::shared::SharedTiles;

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>, v: &SharedTiles<F16, 4, 4, 2>, warp: Warp) {
    o.mma_ab(p, &v.tile(7), warp, |_| {});
}

fn main() {}
