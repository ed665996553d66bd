//! Four warps are no three teams: two warps would leave their registers in one place.
use misuse::K;
use tile::{Block, Team, WarpRows};

fn teams(block: &Block<K>) -> (WarpRows<4, 4>, Team<3>) {
    block.teams()
}

fn main() {
    let _ = teams as fn(&_) -> _;
}
