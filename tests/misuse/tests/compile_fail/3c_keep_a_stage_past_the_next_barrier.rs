//! A stage is refilled after the next `advance`: by then nobody may hold it.
use contract::F16;
use misuse::{K, Stage};
use tile::{AFrag, Acc, Block, Pipeline};

fn step(mut kv: Pipeline<Stage<F16, 4, 4>, 2>, mut block: Block<K>, s: &mut Acc<2, 4>, q: &AFrag<F16, 2, 4>) {
    let warp = block.warp();
    let old = kv.advance(&mut block, |_, _| {});
    let _new = kv.advance(&mut block, |_, _| {});
    s.mma_abt(q, &old.k, warp, |_| {});
}

fn main() {}
