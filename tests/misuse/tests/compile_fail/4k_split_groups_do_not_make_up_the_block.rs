//! Four warps as three split groups: two warps would exchange registers in one place.
use misuse::K;
use tile::Block;
use tile::group::{SplitGroup, WarpRows};

fn teams(block: &Block<K>) -> (WarpRows<4, 4>, SplitGroup<3>) {
    block.split_groups()
}

fn main() {
    let _ = teams as fn(&_) -> _;
}
