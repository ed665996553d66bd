//! Storing through a tile consumes it: its contents are gone.
use contract::F16;
use tile::{Acc, GlobalRows, Resident, SharedTile, Warp};

fn epilogue(q: SharedTile<F16, 8, 4>, o: &Acc<2, 4>, out: &GlobalRows<F16, 4>, warp: Warp) -> Resident<F16, 2, 4, 4> {
    q.store_through(o, out, 0, warp);
    Resident::load(&q, warp)
}

fn main() {}
