//! Words written twice in one loan: a warp could miss the words of the first write.
use misuse::K;
use tile::{Block, Smem};

fn shared(mut smem: Smem<K>, mut block: Block<K>) {
    let number = block.warp().index();
    smem.lend::<_, 8>(&mut block, |shared, block| {
        let all = shared.write([(number, 1)].into_iter(), block);
        shared.write([(number, 2)].into_iter(), block);
        all.get(0)
    });
}

fn main() {}
