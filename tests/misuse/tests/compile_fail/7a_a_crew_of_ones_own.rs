//! Who copies together is the block or a warp: others would copy where they please.
use tile::Crew;

struct Me;

impl Crew for Me {
    const THREADS: u32 = 128;
    fn member(&self) -> u32 {
        1 << 20
    }
}

fn main() {}
