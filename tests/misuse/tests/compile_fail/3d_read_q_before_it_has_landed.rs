//! A read of Q while its copy is in flight. `land` waits for the copy.
use contract::F16;
use misuse::K;
use tile::{Block, Warp};
use tile::copy::CpAsync;
use tile::mma::{AFrag, Acc};
use tile::pipeline::InFlight;
use tile::shared::SharedTile;

type Flying = InFlight<SharedTile<F16, 4, 4>, CpAsync<Block<K>>>;

fn output(o: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>, v: Flying, warp: Warp) {
    o.mma_ab(p, &v, warp, |_| {});
}

fn main() {}
