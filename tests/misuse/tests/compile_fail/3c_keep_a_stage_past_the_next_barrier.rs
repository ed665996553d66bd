//! A stage kept beyond the next `advance`, which lets a copy refill it.
use contract::F16;
use misuse::{K, Running};
use tile::Block;
use tile::mma::{AFrag, Acc};

fn step(mut kv: Running, mut block: Block<K>, s: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>) {
    let warp = block.warp();
    let old = kv.advance(&mut block, |_, _| {});
    let _new = kv.advance(&mut block, |_, _| {});
    s.mma_ab(p, &old.v, warp, |_| {});
}

fn main() {}
