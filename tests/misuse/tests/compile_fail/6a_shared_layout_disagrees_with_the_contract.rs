//! The layout has exactly the bytes that the contract declares to the host.
use misuse::{K, Q, Stages};
use tile::Smem;

fn split(smem: Smem<K>) -> (Q, Stages<3>) {
    smem.split()
}

fn main() {
    let _ = split as fn(_) -> _;
}
