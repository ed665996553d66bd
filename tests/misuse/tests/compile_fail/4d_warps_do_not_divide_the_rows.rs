//! Four warps of 3 row tiles make 12, but the tile has 8.
use misuse::K;
use tile::Block;
use tile::group::{SplitGroup, WarpRows};

fn rows(block: &Block<K>) -> (WarpRows<8, 3>, SplitGroup<1>) {
    block.split_groups()
}

fn main() {
    let _ = rows as fn(&_) -> _;
}
