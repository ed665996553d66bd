//! Two sinks are two more keys. A kernel adds one.
use kernels_gpu::prelude::*;

entry!(two: With<Fwd<F16, Scored<Causal, (Sink, Sink)>, 8, 2, 1, 4, 4, 4, 2>>);

fn main() {}
