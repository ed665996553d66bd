//! A sequence's rows through a map that does not end where the sequence ends: neighbours' rows would be read.
use contract::{F16, TensorMap};
use tile::{GlobalTiles, Producer, RowOfSequence, SharedTile, Tma};

fn load(
    k: &mut Producer<SharedTile<F16, 8, 8>, 2, Tma>,
    keys: &GlobalTiles<F16, 8, 8, TensorMap>,
    row: RowOfSequence,
) {
    k.load(keys, row);
}

fn main() {}
