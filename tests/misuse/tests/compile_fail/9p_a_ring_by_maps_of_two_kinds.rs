//! A ring of pages through a map whose boxes one thread copies: those who share pages' boxes would not wait.
use contract::{F16, RaggedMap, TensorMap};
use tile::{GlobalTiles, Producer, SharedTile, Tma};

fn load(
    k: &mut Producer<SharedTile<F16, 8, 8>, 2, Tma<RaggedMap>>,
    keys: &GlobalTiles<F16, 8, 8, TensorMap>,
) {
    k.load(keys, [0; 3]);
}

fn main() {}
