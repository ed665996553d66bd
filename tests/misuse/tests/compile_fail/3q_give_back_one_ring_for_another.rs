//! A warp's ring as scratch memory, in return for another warp's ring. A stream's `reclaim` returns the
//! stream's own place, and no other function returns one.
use contract::F16;
use misuse::{K, Stage};
use tile::{Block, Warp};
use tile::pipeline::Stream;

type Kv = Stream<Stage<F16, 1, 4>, 2, 4>;

fn reclaim(mut a: Kv, b: Kv, mut warp: Warp, mut block: Block<K>) {
    let _scratch = a.reclaim(b, &mut block);
    a.turn(&mut warp, |_, _, _| {}, |_, _| {});
}

fn main() {}
