//! A new thread group without `unsafe`: its threads could copy other rows.
use tile::group::ThreadGroup;

struct Me;

impl ThreadGroup for Me {
    const THREADS: u32 = 128;
    fn member(&self) -> u32 {
        1 << 20
    }
}

fn main() {}
