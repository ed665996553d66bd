//! Two sinks are two more keys. A kernel adds one.
use kernels_gpu::exact::sequence;
use kernels_gpu::prelude::*;
use kernels_gpu::spec::SinkParams;

fn main() {
    let params = And::new(SinkParams { base: 64 }, SinkParams { base: 128 });
    <(Sink, Sink)>::load(&params, &sequence(0, 0, [1, 1], 1.0));
}
