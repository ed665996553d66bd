//! A ring for pages filled through a tensor map with one producer thread: other producers would not wait.
use contract::{F16, RaggedMap, TensorMap};
use tile::pipeline::Producer;
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};

fn load(
    k: &mut Producer<SharedTile<F16, 8, 8>, 2, Tma<RaggedMap>>,
    keys: &TmaTensor<F16, 8, 8, TensorMap>,
) {
    k.load(keys, [0; 3]);
}

fn main() {}
