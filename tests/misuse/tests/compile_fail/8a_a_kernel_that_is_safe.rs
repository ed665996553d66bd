//! A kernel that is a safe function. Only its launch can promise threads, shared memory and parameters.
use cuda_std::kernel;

#[kernel]
pub fn entry(to: *mut f32) {
    let _ = to;
}

fn main() {}
