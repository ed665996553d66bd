//! A new kind of place in shared memory without `unsafe`. Its size and alignment are promises.
#![forbid(unsafe_code)]
use tile::shared::Place;

struct Everywhere;

unsafe impl Place for Everywhere {
    const BYTES: usize = 0;
    const ALIGN: usize = 1;
    unsafe fn at(_: u32) -> Self {
        Everywhere
    }
}

fn main() {}
