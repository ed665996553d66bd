//! All of a block's shared memory is split once: two splits would overlap.
use contract::F16;
use misuse::{K, Stage};
use tile::{Ring, SharedTile, Smem, Unfilled};

type Layout = (Unfilled<SharedTile<F16, 8, 4>>, Ring<Stage<F16, 4, 4>, 2>);

fn split(smem: Smem<K>) -> [Layout; 2] {
    [smem.split(), smem.split()]
}

fn main() {}
