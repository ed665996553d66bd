//! Two slots swapped: a copy for K would land in the place of V.
use misuse::{K, Running};
use tile::Block;

fn step(mut kv: Running, mut block: Block<K>) {
    kv.advance(&mut block, |slot, _| core::mem::swap(&mut slot.k, &mut slot.v));
}

fn main() {}
