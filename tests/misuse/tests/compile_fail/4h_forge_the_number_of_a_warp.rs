//! A warp's number says which rows are its own: nobody changes it.
use tile::Warp;

fn first(mut warp: Warp) -> Warp {
    warp.index = 0;
    warp
}

fn main() {}
