//! A block mask on the host, of a mask that reads the request's window. The host does not know the window.
use kernels_gpu::exact::{create_block_mask, sequence};
use kernels_gpu::prelude::*;

fn main() {
    create_block_mask::<Local>(&(), &[sequence(0, 0, [64, 64], 1.0)], 1, [64, 64]);
}
