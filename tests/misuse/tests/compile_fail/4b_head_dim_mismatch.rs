//! Rows of one head dim copied into a tile of another.
use contract::F16;
use misuse::K;
use tile::Block;
use tile::copy::{CpAsync, Walk};
use tile::shared::TileSlot;

type Slot = TileSlot<F16, 4, 4, CpAsync<Block<K>>>;

fn fill(walk: &mut Walk<F16, 4, 8, Block<K>>, slot: &Slot, block: &Block<K>) {
    slot.copy_edge(walk, block);
}

fn main() {}
