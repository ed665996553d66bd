//! The layout has exactly the bytes that the contract declares to the host.
use contract::F16;
use misuse::{K, Stage};
use tile::{Ring, SharedTile, Smem, Unfilled};

type ThreeStages = (Unfilled<SharedTile<F16, 8, 4>>, Ring<Stage<F16, 4, 4>, 3>);

fn split(smem: Smem<K>) -> ThreeStages {
    smem.split()
}

fn main() {
    let _ = split as fn(_) -> _;
}
