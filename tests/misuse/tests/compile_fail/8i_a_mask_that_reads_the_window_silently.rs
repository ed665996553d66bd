//! A mask that reads the request's window and does not say so: a kernel that makes its block masks would run
//! without the window.
use kernels_gpu::exact::sequence;
use kernels_gpu::prelude::*;

#[derive(Clone, Copy)]
struct Near(i32);

impl MaskMarker for Near {
    type Params = ();
}

impl MaskMod for Near {
    fn load(_: &(), of: &Sequence) -> Self {
        Near(of.window::<Near>()[0])
    }
    fn keys(&self, p: i32) -> Range<i32> {
        p - self.0..p + 1
    }
}

fn main() {
    Near::load(&(), &sequence(0, 0, [1, 1], 1.0));
}
