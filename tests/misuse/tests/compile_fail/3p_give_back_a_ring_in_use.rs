//! Warps exchange registers through the memory of a ring that another warp still uses.
use contract::F16;
use misuse::{K, Stage};
use tile::{Block, Warp};
use tile::pipeline::Stream;

fn reclaim(mut kv: Stream<Stage<F16, 1, 4>, 2, 4>, mut warp: Warp, mut block: Block<K>) {
    let _scratch = kv.reclaim(&mut block);
    kv.turn(&mut warp, |_, _, _| {}, |_, _| {});
}

fn main() {}
