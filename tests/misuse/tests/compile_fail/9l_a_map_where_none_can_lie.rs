//! A tensor map in a parameter that the launch contract does not align: TMA would read another tensor
//! map.
use contract::{F16, Kernel, TensorMap};
use tile::Block;
use tile::tma::TmaTensor;

struct Unaligned;

impl Kernel for Unaligned {
    type Params = TensorMap;
    const THREADS: u32 = 128;
    const SMEM_BYTES: usize = 0;
    const BOXES: &'static [[u32; 2]] = &[[64, 64]];
    fn grid(_: &TensorMap) -> [u32; 3] {
        [1; 3]
    }
}

fn tensor(block: &Block<Unaligned>) -> TmaTensor<F16, 4, 4> {
    block.tensor(|map| map)
}

fn main() {
    let _ = tensor as fn(&_) -> _;
}
