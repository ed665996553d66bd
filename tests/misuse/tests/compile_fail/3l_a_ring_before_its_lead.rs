//! Stages filled before the copies that must land first. Waits count groups of copies in issue order.
use misuse::{K, Q, Stages};
use tile::Smem;

fn prologue(smem: Smem<K>) {
    let (q, ring): (Q, Stages<2>) = smem.split();
    let _ = ring.prologue(q, |_, _| {});
}

fn main() {}
