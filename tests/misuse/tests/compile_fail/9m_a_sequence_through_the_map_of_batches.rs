//! A sequence's rows loaded through a tensor map that does not end with the sequence.
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
