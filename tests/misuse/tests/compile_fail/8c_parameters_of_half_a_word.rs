//! Parameters of a mask that would leave padding behind the kernel's own.
use spec::{F16, Fwd, Kernel, MaskMarker, With};

#[derive(Clone, Copy)]
struct Mask;

impl MaskMarker for Mask {
    type Params = u32;
}

fn main() {
    let _ = <With<Fwd<F16, Mask, 8, 2, 1, 4, 4, 4, 2>> as Kernel>::THREADS;
}
