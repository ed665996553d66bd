//! The block fills the stages of one warp: each thread of the block would copy another part.
use contract::F16;
use misuse::{K, Stage};
use tile::{Block, Warp};
use tile::copy::{CpAsync, Walk};
use tile::pipeline::Ring;

type Own = Ring<Stage<F16, 4, 4>, 2, CpAsync<Warp>>;

fn start(ring: Own, walk: &mut Walk<F16, 4, 4, Block<K>>, block: &Block<K>) {
    let _ = ring.start(|_, slot| slot.k.copy_edge(walk, block));
}

fn main() {}
