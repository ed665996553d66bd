//! A thread group that does not cover whole rows of 16-byte chunks.
use contract::F16;
use misuse::Contract;
use tile::Block;
use tile::copy::Walk;
use tile::global::GlobalRows;

type Odd = Contract<36, 0>;

fn walk(rows: GlobalRows<F16, 4>, block: &Block<Odd>) -> Walk<F16, 2, 4, Block<Odd>> {
    Walk::down(rows, 0, block)
}

fn main() {
    let _ = walk as fn(_, &_) -> _;
}
