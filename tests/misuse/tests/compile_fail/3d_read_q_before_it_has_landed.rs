//! What is in flight cannot be read: `land` waits for it.
use contract::F16;
use tile::{InFlight, Resident, SharedTile, Warp};

fn fragment(q: InFlight<SharedTile<F16, 8, 4>>, warp: Warp) -> Resident<F16, 2, 4, 4> {
    Resident::load(&q, warp)
}

fn main() {}
