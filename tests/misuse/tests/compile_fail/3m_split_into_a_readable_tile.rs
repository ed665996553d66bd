//! Shared memory split into a readable tile. `split` returns unfilled places only.
use contract::F16;
use misuse::Contract;
use tile::Smem;
use tile::shared::SharedTile;

fn split(smem: Smem<Contract<128, 16384>>) -> SharedTile<F16, 8, 4> {
    smem.split()
}

fn main() {}
