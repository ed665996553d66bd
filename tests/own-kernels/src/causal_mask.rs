//! A causal mask of a caller, for tests and for `bench/own`.
use kernels_gpu::prelude::*;

/// [`Causal`], as a caller would write it.
#[derive(Clone, Copy)]
pub struct OwnCausal;

impl MaskMarker for OwnCausal {
    type Params = ();
}

impl MaskMod for OwnCausal {
    const LEFT: bool = false;
    const HOLES: bool = false;
    fn load(_: &(), _: &Sequence) -> Self {
        OwnCausal
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
}
