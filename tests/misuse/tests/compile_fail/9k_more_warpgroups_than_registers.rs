//! Four consumer warpgroups: each thread would have fewer registers than it needs.
use contract::F16;
use misuse::Contract;
use tile::Block;
use tile::group::Warpgroup;
use tile::pipeline::MbarrierPipeline;
use tile::shared::SharedTile;
use tile::tma::Tma;

type K = Contract<640, 0>;

fn split(block: Block<K>, ring: MbarrierPipeline<SharedTile<F16, 4, 4>, 2, Tma>) {
    block.specialize(ring, |_| (), |_| (), |_: Warpgroup<4>, _| ());
}

fn main() {
    let _ = split as fn(_, _);
}
