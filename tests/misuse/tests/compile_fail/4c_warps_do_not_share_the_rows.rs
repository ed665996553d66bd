//! The predecessor's 80x64 on 4 warps: 5 row tiles, which warps of 2 row tiles cannot share.
use spec::{F16, Full, Fwd, Kernel};

fn main() {
    let _ = <Fwd<F16, Full, 5, 2, 1, 4, 4, 4, 2> as Kernel>::THREADS;
}
