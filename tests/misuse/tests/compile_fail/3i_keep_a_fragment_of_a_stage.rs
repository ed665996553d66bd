//! An A operand that outlives the stage from which it reads.
use misuse::{K, Running};
use tile::Block;
use tile::group::WarpRows;
use tile::mma::{Acc, Resident};

fn step(mut kv: Running, mut block: Block<K>, s: &mut Acc<1, 4>, mine: WarpRows<4, 1>) {
    let first = kv.advance(&mut block, |_, _| {});
    let old = Resident::<_, 4, 1, 4, 0>::load(&first.k, mine);
    let next = kv.advance(&mut block, |_, _| {});
    s.mma_abt(&old, &next.k, mine.warp(), |_| {});
}

fn main() {}
