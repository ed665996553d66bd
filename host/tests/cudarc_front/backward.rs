//! Backward passes on cudarc's slices.
use super::{of, zeros};
use crate::fake_cuda::in_fake_cuda;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUstreamCaptureMode;
use ferroflash::cudarc::{
    Backward, Cache, FlashAttention, Inputs, Integers, Pages, ScratchMemory, Tensor, TensorMut,
};
use ferroflash::request::{Bias, LseView, Mask, Sinks, VarlenKeys, VarlenQueries};
use half::{bf16, f16};

#[test]
fn gradients_of_a_forward() {
    in_fake_cuda("cudarc_front::backward::gradients_of_a_forward", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (shape, kv_shape) = ([2, 100, 8, 64], [2, 70, 2, 64]);
        let (q, kv) = (zeros(&stream, 2 * 100 * 8 * 64), zeros(&stream, 2 * 70 * 2 * 64));
        let (q, kv) = (Tensor::of(&q, shape), Tensor::of(&kv, kv_shape));
        let inputs = Inputs::of(q, kv, kv).mask(Mask::Causal).scale(0.125);
        let mut scratch = ScratchMemory::new();
        let (o, lse) = front.attend_with_lse::<f16>(&stream, &inputs, &mut scratch).expect("valid");
        let o = Tensor::of(&o, shape);

        cuda.calls();
        let run = |inputs: &Inputs<'_>, scratch: &mut ScratchMemory| {
            front.backward::<f16>(&stream, inputs, (o, &lse), q, scratch)
        };
        let gradients = run(&inputs, &mut scratch).expect("valid");
        assert_eq!(gradients.map(|gradient| gradient.len()), [shape, kv_shape, kv_shape].map(elements));
        let calls = cuda.calls();
        let launches =
            ["launch bwd_delta", "launch bwd_hopper", "launch bwd_convert_dq"].map(|name| of(name, &calls));
        assert_eq!((launches, of("cuMemAlloc", &calls)), ([1; 3], 4), "three gradients and a workspace");
        drop(run(&inputs, &mut scratch).expect("valid"));
        assert_eq!(of("cuMemAlloc", &cuda.calls()), 3, "the workspace stays");

        // The caller's memory, and a gradient of the LSE: a graph may capture the launch.
        let [mut dq, mut dk, mut dv] =
            [shape, kv_shape, kv_shape].map(|shape| zeros(&stream, elements(shape)));
        let d_lse = LseView::read(&lse, shape);
        let mut into = |scratch: &mut ScratchMemory| {
            let [of_dq, of_dk, of_dv] = [
                TensorMut::of(&mut dq, shape),
                TensorMut::of(&mut dk, kv_shape),
                TensorMut::of(&mut dv, kv_shape),
            ];
            let forward = inputs.shorter().with_results(o, &lse);
            front.backward_into(&stream, Backward::new(forward, q, of_dq, of_dk, of_dv).d_lse(d_lse), scratch)
        };
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).expect("it captures");
        cuda.calls();
        into(&mut scratch).expect("valid");
        let error =
            into(&mut ScratchMemory::new()).expect_err("the graph would own the workspace").to_string();
        assert!(error.contains("captures a graph"), "{error}");
        assert!(error.ends_with("launch once before the capture"), "{error}");
        let calls = cuda.calls();
        assert_eq!((of("launch bwd_", &calls), of("cuMemAlloc", &calls)), (3, 0), "{calls:?}");

        // Sinks have a gradient in the caller's memory.
        let logits = stream.clone_htod(&[0.5f32; 8]).expect("room");
        let mut of_sinks = stream.clone_htod(&[0f32; 8]).expect("room");
        let forward = inputs.shorter().sinks(Sinks::of(&logits)).with_results(o, &lse);
        let backward = Backward::new(
            forward,
            q,
            TensorMut::of(&mut dq, shape),
            TensorMut::of(&mut dk, kv_shape),
            TensorMut::of(&mut dv, kv_shape),
        );
        let backward = backward.dsinks(Sinks::gradient(&mut of_sinks));
        front.backward_into(&stream, backward, &mut scratch).expect("valid");
        assert_eq!(of("launch bwd_", &cuda.calls()), 4, "the last one is of the sinks");

        // A bias that all heads share.
        let (numbers, mut of_bias) = (zeros(&stream, 100 * 70), zeros(&stream, 100 * 70));
        let forward = inputs.shorter().bias(Bias::of(&numbers, [1, 1, 100, 70])).with_results(o, &lse);
        let backward = Backward::new(
            forward,
            q,
            TensorMut::of(&mut dq, shape),
            TensorMut::of(&mut dk, kv_shape),
            TensorMut::of(&mut dv, kv_shape),
        );
        let backward = backward.dbias(Bias::gradient(&mut of_bias, [1, 1, 100, 70]));
        front.backward_into(&stream, backward, &mut scratch).expect("valid");
        assert_eq!(of("launch bwd_", &cuda.calls()), 4, "the last one is of the bias");

        // Varlen sequences.
        let rows = zeros(&stream, 100 * 8 * 64);
        let rows = Tensor::of(&rows, [1, 100, 8, 64]);
        let starts = stream.clone_htod(&[0i32, 40, 90]).expect("room");
        let (queries, keys) = (VarlenQueries::of(&starts, 60), VarlenKeys::of(&starts, 60));
        let varlen = Inputs::of_varlen(rows, rows, rows, queries, keys);
        let (of_all, lse_of_all) =
            front.attend_with_lse::<f16>(&stream, &varlen, &mut scratch).expect("valid");
        let of_all = Tensor::of(&of_all, [1, 100, 8, 64]);
        cuda.calls();
        drop(
            front
                .backward::<f16>(&stream, &varlen, (of_all, &lse_of_all), rows, &mut scratch)
                .expect("valid"),
        );
        assert_eq!(of("launch bwd_", &cuda.calls()), 3);

        // What has no gradient is refused by name, before any memory is allocated.
        let lengths = stream.clone_htod(&[70i32, 70]).expect("room");
        let pages = zeros(&stream, 2 * 70 * 2 * 64);
        let cache = Cache::dense(Pages::of(&pages, &pages, kv_shape), Integers::of(&lengths));
        cuda.calls();
        for (inputs, words) in [
            (Inputs::of_cache(q, cache), "backward on a KV cache"),
            (inputs.mask(Mask::Chunked { chunk: 16 }).softcap(9.0), "softcap with mask chunked 16"),
        ] {
            let error = run(&inputs, &mut scratch).map(drop).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        // A shape whose elements have no count, and gradients of another type.
        let huge = Tensor::of(&pages, [1 << 33, 1 << 33, 1, 64]);
        let error = run(&Inputs::of(huge, huge, huge), &mut scratch).map(drop).expect_err("no room");
        assert!(error.to_string().contains("seqlen_q 8589934592"), "{error}");
        let error = front.backward::<bf16>(&stream, &inputs, (o, &lse), q, &mut scratch).map(drop);
        let error = error.expect_err("another type").to_string();
        assert!(error.contains("invalid dq.dtype: bf16"), "{error}");
        let calls = cuda.calls();
        assert_eq!((of("launch", &calls), of("cuMemAlloc", &calls)), (0, 0), "{calls:?}");
        cuda.faults();
    });
}

fn elements(shape: [usize; 4]) -> usize {
    shape.iter().product()
}
