//! A tile behind mbarriers, whose size is not a multiple of the tile's alignment, 1024 bytes.
use contract::F16;
use misuse::{Contract, Stage};
use tile::{Block, Smem, Warp};
use tile::copy::CpAsync;
use tile::pipeline::{MbarrierPipeline, Unfilled};
use tile::shared::SharedTile;

type K = Contract<160, { (8 * 4 + 2 * 2 * 4 * 4) * 512 + 32 }>;
type Stages = MbarrierPipeline<Stage<F16, 4, 4>, 2, CpAsync<Warp>>;
type Q = Unfilled<SharedTile<F16, 8, 4>, CpAsync<Block<K>>>;

fn split(smem: Smem<K>) -> (Stages, Q) {
    smem.split()
}

fn main() {
    let _ = split as fn(_) -> _;
}
