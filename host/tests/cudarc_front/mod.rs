//! Tests the safe functions on cudarc's slices: their launches, allocations, refusals and frees.
mod backward;
mod eight;
mod formats;
mod serving;
mod variant;

use super::fake_cuda::in_fake_cuda;
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use ferroflash::cudarc::{Cache, FlashAttention, Inputs, Integers, Pages, ScratchMemory, Tensor, TensorMut};
use ferroflash::driver::Harness;
use ferroflash::request::{
    AlibiSlopes, Bias, LseView, Mask, MaskBits, Prefix, Queries, VarlenKeys, VarlenQueries,
};
use half::f16;
use std::sync::Arc;

fn of(call: &str, calls: &[String]) -> usize {
    calls.iter().filter(|line| line.starts_with(call)).count()
}

#[test]
fn outputs_log_sum_exps_and_refusals() {
    in_fake_cuda("cudarc_front::outputs_log_sum_exps_and_refusals", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let (stream, other) =
            (context.new_stream().expect("a stream"), CudaContext::new(1).expect("a device"));
        let attention = FlashAttention::new(&context).expect("a driver");
        let (shape, kv_shape) = ([1, 100, 8, 64], [1, 100, 2, 64]);
        let zeros = |len: usize| stream.alloc_zeros::<f16>(len).expect("room");
        let (q, kv) = (zeros(100 * 8 * 64), zeros(100 * 2 * 64));
        let (q, kv) = (Tensor::of(&q, shape), Tensor::of(&kv, kv_shape));
        let request = Inputs::of(q, kv, kv).mask(Mask::Window { left: Some(9), right: Some(0) });
        cuda.calls();

        let o = attention.flash_attn::<f16>(&stream, q, kv, kv, 0.125, true).expect("valid");
        assert_eq!(o.len(), 100 * 8 * 64);
        let mut scratch = ScratchMemory::new();
        let capped = request.softcap(30.0);
        let (_, lse) = attention.attend_with_lse::<f16>(&stream, &capped, &mut scratch).expect("valid");
        assert_eq!(lse.len(), 8 * 100);
        let (mut own, mut lse): (CudaSlice<f16>, CudaSlice<f32>) =
            (zeros(2 * 100 * 8 * 64), stream.alloc_zeros(800).expect("room"));
        let mut half = own.slice_mut(100 * 8 * 64..);
        let into = request.writing(TensorMut::of(&mut half, shape)).lse(LseView::of(&mut lse, shape));
        attention.attend_into(&stream, into, &mut scratch).expect("valid");
        assert_eq!(of("launch fwd_", &cuda.calls()), 3);

        // The error names the fault, and nothing has been allocated.
        let (numbers, bits) = (zeros(100), stream.alloc_zeros::<u8>(100 * 13).expect("room"));
        let lengths = stream.alloc_zeros::<u32>(1).expect("room");
        let none = lengths.slice(..0);
        let full = Inputs::of(q, kv, kv);
        let elsewhere = other.new_stream().expect("a stream");
        let theirs = elsewhere.alloc_zeros::<f16>(100 * 2 * 64).expect("room");
        let theirs = Tensor::of(&theirs, kv_shape);
        cuda.calls();
        let cases = [
            ("stream", attention.flash_attn::<f16>(&elsewhere, q, kv, kv, 0.125, false)),
            ("k", attention.flash_attn::<f16>(&stream, q, theirs, kv, 0.125, false)),
            ("scale", attention.flash_attn::<f16>(&stream, q, kv, kv, f32::NAN, false)),
            ("softcap", attention.attend::<f16>(&stream, &request.softcap(-1.0), &mut scratch)),
            ("v.shape", attention.attend::<f16>(&stream, &Inputs::of(q, kv, q), &mut scratch)),
            (
                "mask.bits.bytes",
                attention.attend::<f16>(
                    &stream,
                    &full.mask(Mask::Bits(MaskBits::of(&bits, [1, 8, 100, 100]))),
                    &mut scratch,
                ),
            ),
            (
                "mask.bits.strides",
                attention.attend::<f16>(
                    &stream,
                    &full.mask(Mask::Bits(MaskBits::of(&bits, [1, 1, 100, 100]).strides([0, 0, 12]))),
                    &mut scratch,
                ),
            ),
            (
                "mask.prefix.elements",
                attention.attend::<f16>(
                    &stream,
                    &full.mask(Mask::Prefix(Prefix::Each(Integers::of(&none)))),
                    &mut scratch,
                ),
            ),
            (
                "bias.shape",
                attention.attend::<f16>(&stream, &full.bias(Bias::of(&numbers, [1, 1, 1, 99])), &mut scratch),
            ),
            (
                "bias.elements",
                attention.attend::<f16>(
                    &stream,
                    &full.bias(Bias::of(&numbers, [1, 1, 100, 100])),
                    &mut scratch,
                ),
            ),
            (
                "bias.strides",
                attention.attend::<f16>(
                    &stream,
                    &full.bias(Bias::of(&numbers, [1, 1, 100, 100]).strides([0, 0, 1, 1])),
                    &mut scratch,
                ),
            ),
            (
                "q.elements",
                attention.flash_attn::<f16>(&stream, Tensor::of(&o, [1, 101, 8, 64]), kv, kv, 1.0, false),
            ),
        ];
        for (name, outcome) in cases {
            let error = outcome.map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(&format!("{name}:")), "{name}: {error}");
        }
        let long = request.writing(TensorMut::of(&mut half, [1, 101, 8, 64]));
        let short = attention.attend_into(&stream, long, &mut scratch);
        assert!(short.expect_err("too long").to_string().contains("o.shape"));
        let calls = cuda.calls();
        assert_eq!((of("cuMemAlloc", &calls), of("launch", &calls)), (0, 0), "{calls:?}");
        cuda.faults();
    });
}

#[test]
fn everything_is_given_back() {
    in_fake_cuda("cudarc_front::everything_is_given_back", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let attention = FlashAttention::new(&context).expect("a driver");
        // Few queries on many keys need a workspace.
        let (q, kv) = (stream.alloc_zeros::<f16>(20 * 4 * 128), stream.alloc_zeros::<f16>(4096 * 4 * 128));
        let (q, kv) = (q.expect("room"), kv.expect("room"));
        let tensors = (Tensor::of(&q, [1, 20, 4, 128]), Tensor::of(&kv, [1, 4096, 4, 128]));
        let (inputs, mut scratch) = (Inputs::of(tensors.0, tensors.1, tensors.1), ScratchMemory::new());
        let o = attention.attend::<f16>(&stream, &inputs, &mut scratch).expect("valid");
        let buffer = attention.attention().driver().allocate(64).expect("room");
        cuda.calls();
        drop(attention);
        let calls = cuda.calls();
        let waited = calls.iter().position(|call| call == "cuCtxSynchronize").expect("it waits");
        assert!(calls.iter().position(|call| call == "cuModuleUnload") > Some(waited), "{calls:?}");
        drop((o, q, kv, scratch, stream, context));
        assert_eq!(cuda.left(), ["memory of context 0xc00", "context of device 0"]);
        drop(buffer);
        assert_eq!((cuda.faults(), cuda.left()), (vec![], vec![]));
    });
}

/// The front does not unload kernels that may still run.
#[test]
fn kernels_stay_where_waiting_for_them_fails() {
    in_fake_cuda("cudarc_front::kernels_stay_where_waiting_for_them_fails", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let (q, kv) = (zeros(&stream, 100 * 8 * 64), zeros(&stream, 100 * 2 * 64));
        let (q, kv) = (Tensor::of(&q, [1, 100, 8, 64]), Tensor::of(&kv, [1, 100, 2, 64]));
        let unloaded = |fails: &dyn Fn()| {
            let attention = FlashAttention::new(&context).expect("a driver");
            attention.flash_attn::<f16>(&stream, q, kv, kv, 0.125, true).expect("valid");
            fails();
            cuda.calls();
            drop(attention);
            of("cuModuleUnload", &cuda.calls())
        };
        assert_eq!(unloaded(&|| ()), 1);
        assert_eq!(unloaded(&|| cuda.fail("cuCtxSynchronize")), 0);
        // While another stream captures, the driver refuses to wait for the context.
        let other = context.new_stream().expect("a stream");
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        assert_eq!(unloaded(&|| other.begin_capture(mode).expect("it captures")), 0);
        cuda.faults();
    });
}

/// In rows that belong to no varlen sequence, O is 0 and the log-sum-exp is -inf. A merge gives such rows no
/// weight.
#[test]
fn rows_of_no_sequence() {
    in_fake_cuda("cudarc_front::rows_of_no_sequence", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (q, starts) = (zeros(&stream, 32 * 64), stream.clone_htod(&[0i32, 4]).expect("room"));
        let q = Tensor::of(&q, [1, 32, 1, 64]);
        let lengths = stream.clone_htod(&[4i32]).expect("room");
        let cache = zeros(&stream, 16 * 64);
        let cache = Cache::dense(Pages::of(&cache, &cache, [1, 16, 1, 64]), Integers::of(&lengths));
        let mut scratch = ScratchMemory::new();
        let tensors = Inputs::of_varlen(q, q, q, VarlenQueries::of(&starts, 4), VarlenKeys::of(&starts, 4));
        let cached = Inputs::of_cache(q, cache).queries(Queries::Varlen(VarlenQueries::of(&starts, 4)));
        let outcomes = [
            front.attend_with_lse::<f16>(&stream, &tensors, &mut scratch).expect("valid"),
            front.attend_with_lse::<f16>(&stream, &cached, &mut scratch).expect("valid"),
        ];
        for (number, (o, lse)) in outcomes.iter().enumerate() {
            let (o, lse) = (stream.clone_dtoh(o), stream.clone_dtoh(lse));
            assert!(o.expect("read").iter().all(|x| x.to_bits() == 0), "{number}");
            assert_eq!(lse.expect("read"), [f32::NEG_INFINITY; 32], "{number}");
        }
        assert_eq!(cuda.faults(), Vec::<String>::new());
    });
}

#[test]
fn what_comes_again() {
    in_fake_cuda("cudarc_front::what_comes_again", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let attention = FlashAttention::new(&context).expect("a driver");
        let (q, kv) = (zeros(&stream, 100 * 4 * 128), zeros(&stream, 4096 * 4 * 128));
        let kv = Tensor::of(&kv, [1, 4096, 4, 128]);
        // Few queries on many keys need a workspace. More queries need a larger workspace.
        let of_rows = |rows| Inputs::of(Tensor::of(&q, [1, rows, 4, 128]), kv, kv);
        let mut scratch = ScratchMemory::new();
        let mut run = |rows| {
            cuda.calls();
            let o = attention.attend::<f16>(&stream, &of_rows(rows), &mut scratch).expect("valid");
            let (calls, bytes) = (cuda.calls(), scratch.bytes().workspace);
            drop(o);
            ([of("cuMemAlloc", &calls), of("cuMemFree", &calls)], bytes)
        };
        let (counts, small) = run(4);
        assert_eq!(counts, [3, 0], "O, workspace and counters: few rows take a decode kernel");
        assert_eq!(run(4), ([1, 0], small), "O alone");
        let (counts, large) = run(100);
        assert!(large > small, "{large} of {small}");
        assert_eq!(counts, [2, 1], "the outgrown memory is freed");
        assert_eq!(run(4), ([1, 0], large));
        // A stored plan checks other tensors before it takes them.
        let short = q.slice(..4 * 4 * 128 - 1);
        let short = Inputs::of(Tensor::of(&short, [1, 4, 4, 128]), kv, kv);
        let error =
            attention.attend::<f16>(&stream, &short, &mut scratch).map(|_| ()).expect_err("too short");
        assert!(error.to_string().contains("q.elements"), "{error}");
        cuda.faults();
    });
}

/// A latent cache, then separate keys and values of equal shapes and strides: each has its own plan.
#[test]
fn the_place_of_values_belongs_to_a_plan() {
    in_fake_cuda("cudarc_front::the_place_of_values_belongs_to_a_plan", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (q, keys, values) = (zeros(&stream, 384), zeros(&stream, 12288), zeros(&stream, 12288));
        let table = stream.alloc_zeros::<i32>(4).expect("room");
        let lengths = stream.alloc_zeros::<i32>(2).expect("room");
        let shape = [4, 16, 1, 192];
        let wide = [16 * 192, 192, 192, 1];
        let apart = Pages::new(Tensor::of(&keys, shape), Tensor::of(&values, [4, 16, 1, 128]).strides(wide));
        cuda.calls();
        for pages in [
            Pages::latent(Tensor::of(&keys, shape), 128),
            apart,
            Pages::latent(Tensor::of(&keys, shape), 128),
        ] {
            let cache = Cache::paged(pages, Integers::of(&table), 2, Integers::of(&lengths));
            let inputs = Inputs::of_cache(Tensor::of(&q, [2, 1, 1, 192]), cache).scale(0.1);
            front.attend::<f16>(&stream, &inputs, &mut ScratchMemory::new()).expect("valid");
        }
        assert_eq!(launched(cuda), ["mla", "paged", "mla"]);
        cuda.faults();
    });
}

fn zeros(stream: &Arc<CudaStream>, len: usize) -> CudaSlice<f16> {
    stream.alloc_zeros(len).expect("room")
}

/// Returns the kernels launched since the last query, without the text after the family's name.
fn launched(cuda: &super::fake_cuda::FakeCuda) -> Vec<String> {
    let launches =
        cuda.calls().into_iter().filter_map(|call| call.strip_prefix("launch ").map(str::to_owned));
    launches.map(|name| name.split(['_', ' ']).next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn candles_functions() {
    in_fake_cuda("cudarc_front::candles_functions", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (q, kv) = (zeros(&stream, 100 * 8 * 64), zeros(&stream, 100 * 2 * 64));
        let (q, kv) = (Tensor::of(&q, [1, 100, 8, 64]), Tensor::of(&kv, [1, 100, 2, 64]));
        let (slopes, starts) = (stream.alloc_zeros::<f32>(8), stream.alloc_zeros::<u32>(4));
        let (slopes, starts) = (slopes.expect("room"), starts.expect("room"));
        let offsets = Integers::of(&starts);
        let (may, s, l, r) = (Some(AlibiSlopes::of(&slopes)), &stream, Some(9), Some(0));
        cuda.calls();
        let outcomes = [
            front.flash_attn_alibi::<f16>(s, q, kv, kv, AlibiSlopes::of(&slopes), 0.125, true),
            front.flash_attn_alibi_windowed::<f16>(s, q, kv, kv, AlibiSlopes::of(&slopes), 0.125, l, r),
            front.flash_attn_alibi_windowed_softcap::<f16>(s, q, kv, kv, may, 0.125, l, r, 30.0),
            front.flash_attn_alibi_windowed_softcap::<f16>(s, q, kv, kv, None, 0.125, l, r, 30.0),
            front.flash_attn_varlen::<f16>(s, q, kv, kv, offsets, offsets, 50, 50, 0.125, true),
            front.flash_attn_varlen_windowed::<f16>(s, q, kv, kv, offsets, offsets, 50, 50, 0.125, l, r),
            front.flash_attn_varlen_alibi::<f16>(
                s,
                q,
                kv,
                kv,
                AlibiSlopes::of(&slopes),
                offsets,
                offsets,
                50,
                50,
                0.125,
                true,
            ),
            front.flash_attn_varlen_alibi_windowed::<f16>(
                s,
                q,
                kv,
                kv,
                AlibiSlopes::of(&slopes),
                offsets,
                offsets,
                50,
                50,
                0.125,
                l,
                r,
            ),
            front.flash_attn_varlen_alibi_windowed_softcap::<f16>(
                s, q, kv, kv, may, offsets, offsets, 50, 50, 0.125, l, r, 30.0,
            ),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.expect("valid").len(), 100 * 8 * 64);
        }
        // Rows that belong to no sequence are zeros.
        let (calls, is_varlen) = (cuda.calls(), |call: &&String| call.contains("_packed "));
        let counts =
            [of("launch fwd_", &calls), calls.iter().filter(is_varlen).count(), of("cuMemset", &calls)];
        assert_eq!(counts, [9, 5, 5], "{calls:?}");

        let few = stream.alloc_zeros::<f32>(7).expect("room");
        let request = Inputs::of(q, kv, kv);
        let [one, two, three] = [1, 2, 3].map(|count| starts.slice(..count));
        // No sequence is a launch that does nothing.
        let empty = Inputs::of_varlen(q, kv, kv, VarlenQueries::of(&one, 50), VarlenKeys::of(&starts, 50));
        front.attend::<f16>(&stream, &empty, &mut ScratchMemory::new()).expect("valid");
        assert_eq!(of("launch fwd_", &cuda.calls()), 0);
        let cases = [
            ("alibi.elements", request.alibi(AlibiSlopes::of(&few))),
            ("alibi.elements", request.alibi(AlibiSlopes::of(&slopes).strides([8, 2]))),
            (
                "seqused_k.elements",
                Inputs::of_varlen(
                    q,
                    kv,
                    kv,
                    VarlenQueries::of(&starts, 50),
                    VarlenKeys::of(&starts, 50).seqused_k(Integers::of(&two)),
                ),
            ),
            (
                "cu_seqlens_k.elements",
                Inputs::of_varlen(q, kv, kv, VarlenQueries::of(&starts, 50), VarlenKeys::of(&three, 50)),
            ),
        ];
        for (name, request) in cases {
            let error = front
                .attend::<f16>(&stream, &request, &mut ScratchMemory::new())
                .map(|_| ())
                .expect_err(name);
            let error = error.to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        cuda.faults();
    });
}
