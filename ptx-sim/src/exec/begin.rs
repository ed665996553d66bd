//! The order in which the blocks of a launch begin. CUDA promises none, so a kernel whose blocks wait for
//! blocks with lower indices may wait forever.

use super::block::Random;

/// A permutation of the blocks: from `first` on, every `step`-th block, modulo the number of blocks. `step`
/// and this number have no common divisor. The permutation takes no memory, whatever the number is.
pub(super) struct Begin {
    blocks: u64,
    first: u64,
    step: u64,
}

impl Begin {
    /// The ascending order for seed 0, and a random order for other seeds.
    pub fn new(blocks: u64, seed: u64) -> Begin {
        if seed == 0 || blocks == 0 {
            return Begin { blocks, first: 0, step: 1 };
        }
        let mut random = Random(!seed);
        let first = random.next() % blocks;
        loop {
            let step = random.next() % blocks;
            if divisor(step, blocks) == 1 {
                return Begin { blocks, first, step };
            }
        }
    }

    /// The index of the block that begins as number `number`.
    pub fn block(&self, number: u64) -> u64 {
        let [number, step] = [number, self.step].map(u128::from);
        let index = (u128::from(self.first) + number * step) % u128::from(self.blocks);
        index as u64 // below `blocks`
    }
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_block_begins_once_in_an_order_of_the_seed() {
        for blocks in [1, 2, 3, 12, 97] {
            let order = |seed| (0..blocks).map(|n| Begin::new(blocks, seed).block(n)).collect::<Vec<_>>();
            let all: HashSet<_> = (0..30).map(order).collect();
            assert_eq!(order(0), (0..blocks).collect::<Vec<_>>());
            for order in &all {
                assert_eq!(order.iter().collect::<HashSet<_>>().len() as u64, blocks, "{order:?}");
            }
            // One block has one order, two blocks have two, and three blocks have six.
            assert_eq!(all.len().min(6) as u64, [1, 2, 6][blocks.min(3) as usize - 1], "{blocks}");
        }
    }
}
