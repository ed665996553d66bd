//! The host would plan a kernel without this sink, and kernel and reference would ignore it.
use kernels_gpu::exact::{MaskFn, sequence};
use kernels_gpu::prelude::*;

#[derive(Clone, Copy)]
struct Silent;

impl ScoreMarker for Silent {
    type Params = ();
}

impl ScoreMod for Silent {
    const CHANGES: bool = false;
    const SINK: Option<fn(&Self) -> f32> = Some(|_| 1.0);
    fn load(_: &(), _: &Sequence) -> Self {
        Silent
    }
}

fn main() {
    <Scored<Causal, Silent> as MaskFn>::keys(&And::new((), ()), &sequence(0, 0, [1, 1], 1.0));
}
