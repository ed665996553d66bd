//! A kernel that begins early and reads partial results before it waits for the kernel that leaves them.
use contract::{Dependent, Partials};
use misuse::K;
use tile::global::RowSlices;
use tile::{Block, Dealt, Ended};

fn read(partials: &Partials, block: &Block<Dependent<K>>, by: &Dealt) -> [f32; 3] {
    let left = RowSlices::<1>::new(partials, 0, 1, 0, 0, by);
    let waited = left.value(0, 0.0, block.ended());
    [waited, left.value(0, 0.0), left.value(0, 0.0, Ended(()))]
}

fn main() {
    let _ = read as fn(&_, &_, &_) -> _;
}
