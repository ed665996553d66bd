//! Additions to sums in global memory without a turn: the order of additions would vary from launch to
//! launch.
use misuse::Group;
use tile::global::GlobalSums;
use tile::mma::Acc;

fn add(group: &Group, sums: GlobalSums<'_, 2, 4>, tile: u32, acc: &Acc<1, 4>) {
    // SAFETY: there is none.
    unsafe { sums.add(tile, acc, false, group) }
}

fn main() {}
