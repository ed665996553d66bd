//! Keys loaded through Q's tensor map: its boxes differ, and the mbarrier would expect other bytes.
use contract::F16;
use tile::pipeline::Producer;
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};

fn load(k: &mut Producer<SharedTile<F16, 8, 8>, 2, Tma>, q: &TmaTensor<F16, 4, 8>) {
    k.load(q, [0; 3]);
}

fn main() {}
