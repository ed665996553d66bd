//! A changed warp index. The index selects the rows that a warp owns.
use tile::Warp;

fn first(mut warp: Warp) -> Warp {
    warp.index = 0;
    warp
}

fn main() {}
