//! Reclaiming the stages for something else ends the pipeline.
use contract::F16;
use misuse::{K, Stage};
use tile::{Block, Pipeline};

fn end(mut kv: Pipeline<Stage<F16, 4, 4>, 2>, mut block: Block<K>) {
    let _scratch = kv.reclaim(&mut block);
    kv.advance(&mut block, |_, _| {});
}

fn main() {}
