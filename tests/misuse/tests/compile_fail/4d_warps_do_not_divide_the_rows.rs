//! Four warps of 3 row tiles would be 12: the tile has 8.
use misuse::K;
use tile::{Block, Team, WarpRows};

fn rows(block: &Block<K>) -> (WarpRows<8, 3>, Team<1>) {
    block.teams()
}

fn main() {
    let _ = rows as fn(&_) -> _;
}
