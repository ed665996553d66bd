//! A tile of sums that may not exist.
use contract::TileSums;
use tile::global::SumTile;
use tile::turns::TurnKeeper;

fn keep(keeper: &mut TurnKeeper<2, 4>, sums: &TileSums) {
    keeper.keep(SumTile { sums, index: 7 }, 0);
}

fn main() {}
