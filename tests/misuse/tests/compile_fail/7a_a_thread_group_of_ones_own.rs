//! Who copies together is the block or a warp: others would copy where they please.
use tile::group::ThreadGroup;

struct Me;

impl ThreadGroup for Me {
    const THREADS: u32 = 128;
    fn member(&self) -> u32 {
        1 << 20
    }
}

fn main() {}
