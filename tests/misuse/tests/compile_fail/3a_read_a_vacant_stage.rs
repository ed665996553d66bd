//! A read of a stage while a copy refills it.
use contract::F16;
use misuse::{K, Running};
use tile::Block;
use tile::mma::{AFrag, Acc};

fn step(mut kv: Running, mut block: Block<K>, s: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>) {
    let warp = block.warp();
    kv.advance(&mut block, |slot, _| s.mma_ab(p, &slot.v, warp, |_| {}));
}

fn main() {}
