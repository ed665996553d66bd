//! A sequence's rows through a map that does not end where the sequence ends: neighbours' rows would be read.
use contract::{F16, TensorMap};
use tile::pipeline::Producer;
use tile::shared::SharedTile;
use tile::tma::{RaggedRow, Tma, TmaTensor};

fn load(
    k: &mut Producer<SharedTile<F16, 8, 8>, 2, Tma>,
    keys: &TmaTensor<F16, 8, 8, TensorMap>,
    row: RaggedRow,
) {
    k.load(keys, row);
}

fn main() {}
