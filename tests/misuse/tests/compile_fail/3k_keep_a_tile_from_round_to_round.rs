//! A tile kept from one round of a persistent kernel to the next.
use core::cell::Cell;
use misuse::{K, Q, Stages};
use tile::{Block, Smem};

fn rounds(mut block: Block<K>, smem: Smem<K>) {
    let kept = Cell::new(None);
    smem.rounds(&mut block, 0..2, &(), (), |(), (), _, _, smem| {
        let (q, _): (Q, Stages<2>) = smem.split();
        kept.set(Some(q));
        std::ops::ControlFlow::Continue(())
    });
}

fn main() {}
