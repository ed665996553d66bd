//! A shared memory layout with other bytes than the launch contract declares.
use misuse::{K, Q, Stages};
use tile::Smem;

fn split(smem: Smem<K>) -> (Q, Stages<3>) {
    smem.split()
}

fn main() {
    let _ = split as fn(_) -> _;
}
