//! Rows of another head dim do not fit a tile.
use contract::F16;
use misuse::K;
use tile::{Block, TileSlot, Walk};

fn fill(walk: &mut Walk<F16, 4, 8>, slot: &mut TileSlot<F16, 4, 4>, block: &Block<K>) {
    slot.copy_edge(walk, block);
}

fn main() {}
