//! A launch with the block and shared memory of another kernel's contract.
use contract::Kernel;
use misuse::{Contract, K};
use tile::{Block, Smem};

fn run<K: Kernel>(_: Block<K>, _: Smem<K>) {}

fn entry(block: Block<Contract<64, { K::SMEM_BYTES }>>, smem: Smem<K>) {
    run(block, smem)
}

fn main() {}
