//! Words kept beyond the loan that makes them readable.
use misuse::K;
use tile::{Block, Smem};

fn shared(mut smem: Smem<K>, mut block: Block<K>) -> u32 {
    let number = block.warp().index();
    let left = smem.lend::<_, 8>(&mut block, |shared, block| shared.write([(number, 1)].into_iter(), block));
    left.get(0)
}

fn main() {}
