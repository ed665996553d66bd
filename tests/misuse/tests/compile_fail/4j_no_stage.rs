//! A ring without a stage.
use contract::F16;
use misuse::{Contract, Stage};
use tile::{Block, Smem};
use tile::copy::CpAsync;
use tile::pipeline::Ring;

type Empty = Contract<128, 0>;

fn split(smem: Smem<Empty>) -> Ring<Stage<F16, 4, 4>, 0, CpAsync<Block<Empty>>> {
    smem.split()
}

fn main() {
    let _ = split as fn(_) -> _;
}
