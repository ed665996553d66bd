//! Shared memory split twice: the places would overlap.
use misuse::{K, Q, Stages};
use tile::Smem;

fn split(smem: Smem<K>) -> [(Q, Stages<2>); 2] {
    [smem.split(), smem.split()]
}

fn main() {}
