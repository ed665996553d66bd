//! A tensor with other boxes than the host encodes: a copy would move another tile.
use contract::{F16, Kernel, TensorMap};
use tile::Block;
use tile::tma::TmaTensor;

struct TmaTile;

impl Kernel for TmaTile {
    type Params = TensorMap;
    const THREADS: u32 = 128;
    const SMEM_BYTES: usize = 0;
    const PARAM_ALIGN: u32 = TensorMap::ALIGN;
    const BOXES: &'static [[u32; 2]] = &[[64, 64], [64, 128]];
    fn grid(_: &TensorMap) -> [u32; 3] {
        [1; 3]
    }
}

fn tensors(block: &Block<TmaTile>) -> (TmaTensor<F16, 8, 4>, TmaTensor<F16, 6, 4>) {
    (block.tensor(|map| map), block.tensor(|map| map))
}

fn main() {
    let _ = tensors as fn(&_) -> _;
}
