//! Reclaiming the stages for something else ends the pipeline.
use misuse::{K, Running};
use tile::Block;

fn end(mut kv: Running, mut block: Block<K>) {
    let _scratch = kv.reclaim(&mut block);
    kv.advance(&mut block, |_, _| {});
}

fn main() {}
