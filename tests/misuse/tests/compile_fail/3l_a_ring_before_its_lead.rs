//! What lands before the stages is on its way before them: groups of copies are counted.
use misuse::{K, Q, Stages};
use tile::Smem;

fn prologue(smem: Smem<K>) {
    let (q, ring): (Q, Stages<2>) = smem.split();
    let _ = ring.prologue(q, |_, _| {});
}

fn main() {}
