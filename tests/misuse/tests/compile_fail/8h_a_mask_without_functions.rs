//! A kernel of a mask that does not say which keys a query sees.
use kernels_gpu::prelude::*;

#[derive(Clone, Copy)]
struct Nothing;

impl MaskMarker for Nothing {
    type Params = ();
}

entry!(nothing: With<Fwd<F16, Nothing, 8, 2, 1, 4, 4, 4, 2>>);

fn main() {}
