//! A stage that is being refilled cannot be read.
use contract::F16;
use misuse::{K, Stage};
use tile::{AFrag, Acc, Block, Pipeline};

fn step(mut kv: Pipeline<Stage<F16, 4, 4>, 2>, mut block: Block<K>, s: &mut Acc<2, 4>, q: &AFrag<F16, 2, 4>) {
    let warp = block.warp();
    kv.advance(&mut block, |vacant, _| s.mma_abt(q, &vacant.k, warp, |_| {}));
}

fn main() {}
