//! Additions to sums in global memory without a turn: the order of additions would vary from launch to
//! launch, and the address could be any.
use misuse::Group;
use tile::global::GlobalSums;
use tile::mma::Acc;

fn add(group: &Group, grant: [u32; 2], acc: &Acc<1, 4>) {
    // SAFETY: there is none.
    unsafe { GlobalSums::<2, 4>::add(grant, acc, group) }
}

fn main() {}
