//! The safe functions on cudarc's slices: what they launch, allocate, refuse and give back.
use super::fake_cuda::in_fake_cuda;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use ferroflash::cudarc::{
    Cache, FlashAttention, Inputs, Pages, PagesMut, PerHead, Room, Scale, State, Tensor, TensorMut,
};
use ferroflash::driver::Harness;
use ferroflash::request::{LseUnit, Mask, Splits};
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
        let (q, kv) = (Tensor::new(&q, shape), Tensor::new(&kv, kv_shape));
        let request = Inputs::dense(q, kv, kv).mask(Mask::Window { left: Some(9), right: Some(0) });
        let mut room = Room::new();
        cuda.calls();

        let o = attention.flash_attn(&stream, q, kv, kv, 0.125, true).expect("valid");
        assert_eq!(o.len(), 100 * 8 * 64);
        let (_, lse) = attention.attend_with_lse(&stream, &request.softcap(30.0), &mut room).expect("valid");
        assert_eq!(lse.len(), 8 * 100);
        let (mut own, mut lse): (CudaSlice<f16>, CudaSlice<f32>) =
            (zeros(2 * 100 * 8 * 64), stream.alloc_zeros(800).expect("room"));
        let mut half = own.slice_mut(100 * 8 * 64..);
        let into = TensorMut::new(&mut half, shape);
        attention.attend_into(&stream, &request, &mut room, into, Some(&mut lse)).expect("valid");
        assert_eq!(of("launch fwd_", &cuda.calls()), 3);

        // Refused by name, and nothing was allocated.
        let elsewhere = other.new_stream().expect("a stream");
        let theirs = elsewhere.alloc_zeros::<f16>(100 * 2 * 64).expect("room");
        let theirs = Tensor::new(&theirs, kv_shape);
        cuda.calls();
        let cases = [
            ("stream", attention.flash_attn(&elsewhere, q, kv, kv, 0.125, false)),
            ("k", attention.flash_attn(&stream, q, theirs, kv, 0.125, false)),
            ("scale", attention.flash_attn(&stream, q, kv, kv, f32::NAN, false)),
            ("softcap", attention.attend(&stream, &request.softcap(-1.0), &mut room)),
            ("v.shape", attention.attend(&stream, &Inputs::dense(q, kv, q), &mut room)),
            (
                "q.elements",
                attention.flash_attn(&stream, Tensor::new(&o, [1, 101, 8, 64]), kv, kv, 1.0, false),
            ),
        ];
        for (name, outcome) in cases {
            let error = outcome.map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(&format!("{name}:")), "{name}: {error}");
        }
        let short =
            attention.attend_into(&stream, &request, &mut room, TensorMut::new(&mut half, [1, 101, 8, 64]), None);
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
        // Few queries on many keys: with a workspace.
        let (q, kv) = (stream.alloc_zeros::<f16>(20 * 4 * 128), stream.alloc_zeros::<f16>(4096 * 4 * 128));
        let (q, kv) = (q.expect("room"), kv.expect("room"));
        let tensors = (Tensor::new(&q, [1, 20, 4, 128]), Tensor::new(&kv, [1, 4096, 4, 128]));
        let (q_view, kv_view) = tensors;
        let o = attention.flash_attn(&stream, q_view, kv_view, kv_view, 0.1, false).expect("valid");
        let buffer = attention.attention().driver().allocate(64).expect("room");
        cuda.calls();
        drop(attention);
        let calls = cuda.calls();
        let waited = calls.iter().position(|call| call == "cuCtxSynchronize").expect("it waits");
        assert!(calls.iter().position(|call| call == "cuModuleUnload") > Some(waited), "{calls:?}");
        drop((o, q, kv, stream, context));
        assert_eq!(cuda.left(), ["memory of context 0xc00", "context of device 0"]);
        drop(buffer);
        assert_eq!((cuda.faults(), cuda.left()), (vec![], vec![]));
    });
}

/// Kernels that may still run are not unloaded.
#[test]
fn kernels_stay_where_waiting_for_them_fails() {
    in_fake_cuda("cudarc_front::kernels_stay_where_waiting_for_them_fails", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let (q, kv) = (zeros(&stream, 100 * 8 * 64), zeros(&stream, 100 * 2 * 64));
        let (q, kv) = (Tensor::new(&q, [1, 100, 8, 64]), Tensor::new(&kv, [1, 100, 2, 64]));
        let unloaded = |fails: &dyn Fn()| {
            let attention = FlashAttention::new(&context).expect("a driver");
            attention.flash_attn(&stream, q, kv, kv, 0.125, true).expect("valid");
            fails();
            cuda.calls();
            drop(attention);
            of("cuModuleUnload", &cuda.calls())
        };
        assert_eq!(unloaded(&|| ()), 1);
        assert_eq!(unloaded(&|| cuda.fail("cuCtxSynchronize")), 0);
        // Somebody else's stream captures: the driver refuses to wait for the context.
        let other = context.new_stream().expect("a stream");
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        assert_eq!(unloaded(&|| other.begin_capture(mode).expect("it captures")), 0);
        cuda.faults();
    });
}

/// Rows that are no packed sequence's: O is 0 and the log-sum-exp -inf, which has no weight in a merge.
#[test]
fn rows_of_no_sequence() {
    in_fake_cuda("cudarc_front::rows_of_no_sequence", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (q, starts) = (zeros(&stream, 32 * 64), stream.clone_htod(&[0i32, 4]).expect("room"));
        let q = Tensor::new(&q, [1, 32, 1, 64]);
        let lengths = stream.clone_htod(&[4i32]).expect("room");
        let cache = zeros(&stream, 16 * 64);
        let cache = Cache::dense(Pages::new(&cache, &cache, [1, 16, 1, 64]), &lengths);
        let (request, mut room) = (Inputs::varlen(q, q, q, &starts, &starts, 4, 4), Room::new());
        let cached = Inputs::cached(q, cache).varlen_queries(&starts, 4);
        let of_tensors = front.attend_with_lse(&stream, &request, &mut room).expect("valid");
        let of_cache = front.attend_with_lse(&stream, &cached, &mut room).expect("valid");
        let outcomes = [of_tensors, of_cache];
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
        let kv = Tensor::new(&kv, [1, 4096, 4, 128]);
        // Few queries on many keys want a workspace, more of them a larger one.
        let of_rows = |rows| Inputs::dense(Tensor::new(&q, [1, rows, 4, 128]), kv, kv);
        let mut room = Room::new();
        let mut run = |rows| {
            cuda.calls();
            let o = attention.attend(&stream, &of_rows(rows), &mut room).expect("valid");
            let (calls, bytes) = (cuda.calls(), room.bytes()[0]);
            drop(o);
            ([of("cuMemAlloc", &calls), of("cuMemFree", &calls)], bytes)
        };
        let (counts, small) = run(4);
        assert_eq!(counts, [2, 0], "O, and the workspace");
        assert_eq!(run(4), ([1, 0], small), "O alone");
        let (counts, large) = run(100);
        assert!(large > small, "{large} of {small}");
        assert_eq!(counts, [2, 1], "what it has outgrown is freed");
        assert_eq!(run(4), ([1, 0], large));
        // A plan that is kept takes no other tensors unseen.
        let short = q.slice(..4 * 4 * 128 - 1);
        let short = Inputs::dense(Tensor::new(&short, [1, 4, 4, 128]), kv, kv);
        let error = attention.attend(&stream, &short, &mut room).map(|_| ()).expect_err("too short").to_string();
        assert!(error.contains("q.elements"), "{error}");
        cuda.faults();
    });
}

fn zeros(stream: &Arc<CudaStream>, len: usize) -> CudaSlice<f16> {
    stream.alloc_zeros(len).expect("room")
}

/// Kernels that were launched since the last time, without what follows the family's name.
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
        let (q, kv) = (Tensor::new(&q, [1, 100, 8, 64]), Tensor::new(&kv, [1, 100, 2, 64]));
        let (slopes, starts) = (stream.alloc_zeros::<f32>(8), stream.alloc_zeros::<u32>(4));
        let (slopes, starts) = (slopes.expect("room"), starts.expect("room"));
        let (may, s, l, r) = (Some(PerHead::new(&slopes)), &stream, Some(9), Some(0));
        cuda.calls();
        let outcomes = [
            front.flash_attn_alibi(s, q, kv, kv, &slopes, 0.125, true),
            front.flash_attn_alibi_windowed(s, q, kv, kv, &slopes, 0.125, l, r),
            front.flash_attn_alibi_windowed_softcap(s, q, kv, kv, may, 0.125, l, r, 30.0),
            front.flash_attn_alibi_windowed_softcap(s, q, kv, kv, None, 0.125, l, r, 30.0),
            front.flash_attn_varlen(s, q, kv, kv, &starts, &starts, 50, 50, 0.125, true),
            front.flash_attn_varlen_windowed(s, q, kv, kv, &starts, &starts, 50, 50, 0.125, l, r),
            front.flash_attn_varlen_alibi(s, q, kv, kv, &slopes, &starts, &starts, 50, 50, 0.125, true),
            front.flash_attn_varlen_alibi_windowed(
                s, q, kv, kv, &slopes, &starts, &starts, 50, 50, 0.125, l, r,
            ),
            front.flash_attn_varlen_alibi_windowed_softcap(
                s, q, kv, kv, may, &starts, &starts, 50, 50, 0.125, l, r, 30.0,
            ),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.expect("valid").len(), 100 * 8 * 64);
        }
        // Rows that are no sequence's are zeros.
        let (calls, packed) = (cuda.calls(), |call: &&String| call.contains("_packed "));
        let counts = [of("launch fwd_", &calls), calls.iter().filter(packed).count(), of("cuMemset", &calls)];
        assert_eq!(counts, [9, 5, 5], "{calls:?}");

        let few = stream.alloc_zeros::<f32>(7).expect("room");
        let request = Inputs::dense(q, kv, kv);
        let [one, two, three] = [1, 2, 3].map(|count| starts.slice(..count));
        let cases = [
            ("alibi.elements", request.alibi(PerHead::new(&few))),
            ("alibi.elements", request.alibi(PerHead::new(&slopes).strides([8, 2]))),
            ("seqused_k.elements", Inputs::varlen(q, kv, kv, &starts, &starts, 50, 50).seqused_k(&two)),
            ("cu_seqlens_k.elements", Inputs::varlen(q, kv, kv, &starts, &three, 50, 50)),
            ("batch", Inputs::varlen(q, kv, kv, &one, &starts, 50, 50)),
        ];
        for (name, request) in cases {
            let error = front.attend(&stream, &request, &mut Room::new()).map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        cuda.faults();
    });
}

#[test]
fn caches_of_any_kind() {
    in_fake_cuda("cudarc_front::caches_of_any_kind", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        // Pages of 16 keys, one of them each sequence's 2 heads of 64, or 4 sequences of up to 160.
        let (shape, dense) = ([40, 16, 2, 64], [4, 160, 2, 64]);
        let (mut keys, mut values) = (zeros(&stream, 40 * 16 * 128), zeros(&stream, 40 * 16 * 128));
        let bytes = stream.alloc_zeros::<u8>(40 * 16 * 128).expect("room");
        let table = stream.alloc_zeros::<u32>(40).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let scales = stream.alloc_zeros::<f32>(8).expect("room");
        let q = zeros(&stream, 4 * 8 * 64);
        let q = Tensor::new(&q, [4, 1, 8, 64]);
        let mut room = Room::new();

        // New tokens go into the cache.
        let slots = stream.alloc_zeros::<i64>(4).expect("room");
        let new = zeros(&stream, 4 * 2 * 64);
        let new = Tensor::new(&new, [1, 4, 2, 64]);
        cuda.calls();
        let into = PagesMut::new(&mut keys, &mut values, shape);
        front.append(&stream, new, new, into, &slots).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        let scaled = PagesMut::new(&mut keys, &mut values, shape).scales(Scale::Value(2.0), Scale::One);
        let error = front.append(&stream, new, new, scaled, &slots).expect_err("a scale of f16").to_string();
        assert!(error.contains("cache.k_scale"), "{error}");

        // Keys and values of one buffer, of either order; one that is too short by the last value.
        let (mut both, mut short) =
            (zeros(&stream, 2 * 40 * 16 * 128), zeros(&stream, 2 * 40 * 16 * 128 - 1));
        let into = PagesMut::interleaved(&mut both, shape);
        front.append(&stream, new, new, into, &slots).expect("valid");
        front
            .append(&stream, new, new, PagesMut::interleaved(&mut both, shape).hnd(), &slots)
            .expect("valid");
        // The same told by strides, of rows that are twice as far apart.
        let half = PagesMut::interleaved(&mut both, [20, 16, 2, 64]).strides([8192, 256, 64, 1]);
        front.append(&stream, new, new, half, &slots).expect("valid");
        let error = front.append(&stream, new, new, PagesMut::interleaved(&mut short, shape), &slots);
        assert!(error.is_err_and(|error| error.to_string().contains("cache.values.elements")));
        assert_eq!(launched(cuda), ["append"; 3]);

        // The room grows once, and then every launch finds what it wants.
        let pages = Pages::new(&keys, &values, shape);
        let eight = Pages::new(&bytes, &bytes, shape);
        let per_head = PerHead::new(&scales).strides([2, 1]);
        let scaled = eight.scales(Scale::Heads(per_head), Scale::Value(0.5));
        let paged = Cache::paged(pages, &table, 10, &lengths);
        let sinks = &scales;
        front.reserve(&stream, &Inputs::cached(q, paged), &mut room).expect("valid");
        assert!(room.bytes().iter().all(|bytes| *bytes > 0), "{:?}", room.bytes());
        let had = room.bytes();
        front.flash_attn_with_kvcache(&stream, q, paged, 0.125, true, &mut room).expect("valid");
        let mut o = zeros(&stream, 4 * 8 * 64);
        cuda.calls();
        let mut into = |request: &Inputs<'_, f16>| {
            front.attend_into(&stream, request, &mut room, TensorMut::new(&mut o, [4, 1, 8, 64]), None)
        };
        into(&Inputs::cached(q, paged).sinks(sinks).softcap(30.0)).expect("valid");
        into(&Inputs::cached(q, Cache::dense(pages.strides([2048, 128, 64, 1]), &lengths))).expect("valid");
        into(&Inputs::cached(q, Cache::dense(Pages::new(&keys, &values, dense), &lengths).max_k(100)))
            .expect("valid");
        into(&Inputs::cached(q, Cache::paged(Pages::interleaved(&both, shape), &table, 10, &lengths)))
            .expect("valid");
        into(&Inputs::cached(
            q,
            Cache::dense(Pages::new(&keys, &values, dense).hnd(), &lengths).rows(&lengths),
        ))
        .expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch decode_", &calls), of("launch", &calls)), (5, 5), "{calls:?}");
        assert_eq!(of("cuMemAlloc", &calls), 0, "{calls:?}");
        let chunks = into(&Inputs::cached(q, paged).splits(Splits::Exactly(64))).expect_err("too small");
        assert!(chunks.to_string().contains("workspace.bytes"), "{chunks}");
        assert_eq!(room.bytes(), had);

        // Of eight bits, and with queries packed or with slopes, which are not decoded.
        let (_, lse) = front
            .attend_with_lse(
                &stream,
                &Inputs::cached(q, Cache::paged(scaled, &table, 10, &lengths)),
                &mut room,
            )
            .expect("valid");
        assert_eq!((lse.len(), launched(cuda)), (4 * 8, vec!["decode".to_owned()]));
        let rows = zeros(&stream, 4 * 8 * 64);
        let flat = Tensor::new(&rows, [1, 4, 8, 64]);
        let starts = stream.alloc_zeros::<u32>(5).expect("room");
        let packed = Inputs::cached(flat, paged).varlen_queries(&starts, 2).mask(Mask::Causal);
        front.attend(&stream, &packed, &mut room).expect("valid");
        front
            .attend(&stream, &Inputs::cached(q, paged).alibi(PerHead::new(&scales)), &mut room)
            .expect("valid");
        assert_eq!(launched(cuda), ["paged", "paged"]);

        let three = table.slice(..3);
        let cases = [
            ("cache.table", Inputs::cached(q, Cache::paged(pages, &table, 11, &lengths))),
            ("q.shape", Inputs::cached(q, paged).varlen_queries(&starts, 2)),
            ("cache.lengths", Inputs::cached(q, Cache::dense(pages, &three))),
            (
                "cache.keys",
                Inputs::cached(q, Cache::dense(Pages::new(&keys, &values, [41, 16, 2, 64]), &lengths)),
            ),
            ("sinks", Inputs::cached(flat, paged).varlen_queries(&starts, 2).sinks(&scales)),
        ];
        for (name, request) in &cases {
            let error = front.attend(&stream, request, &mut room).map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        cuda.faults();
    });
}

/// A graph keeps nothing of what it uses: what is ours stays, and grows in no capture.
#[test]
fn what_was_captured_stays() {
    in_fake_cuda("cudarc_front::what_was_captured_stays", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let (shape, memory) = ([40, 16, 2, 64], zeros(&stream, 40 * 16 * 128));
        let table = stream.alloc_zeros::<u32>(40).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let (q, mut o) = (zeros(&stream, 4 * 8 * 64), zeros(&stream, 4 * 8 * 64));
        let q = Tensor::new(&q, [4, 1, 8, 64]);
        let cache = Cache::paged(Pages::new(&memory, &memory, shape), &table, 10, &lengths);
        let request = Inputs::cached(q, cache);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let before = cuda.left();
        for captures in [false, true] {
            let (front, mut room) = (FlashAttention::new(&context).expect("a driver"), Room::new());
            if captures {
                stream.begin_capture(mode).expect("begun");
                let error = front.reserve(&stream, &request, &mut room).expect_err("it grows").to_string();
                assert!(error.contains("grows in a capture") && error.contains("reserve"), "{error}");
                drop(stream.end_capture(flags).expect("ended"));
            }
            front.reserve(&stream, &request, &mut room).expect("valid");
            let mut launch = || {
                front.attend_into(&stream, &request, &mut room, TensorMut::new(&mut o, [4, 1, 8, 64]), None)
            };
            launch().expect("valid");
            if captures {
                stream.begin_capture(mode).expect("begun");
                launch().expect("valid");
                drop(stream.end_capture(flags).expect("ended"));
            }
            drop((front, room));
            // The kernel, workspace and counters.
            let more = |what: &str| of(what, &cuda.left()) - of(what, &before);
            assert_eq!([more("module"), more("memory")], if captures { [1, 2] } else { [0; 2] });
        }
        cuda.faults();
    });
}

#[test]
fn states_are_merged() {
    in_fake_cuda("cudarc_front::states_are_merged", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (first, second) = (zeros(&stream, 10 * 8 * 64), zeros(&stream, 10 * 8 * 64));
        let (first, second) = (Tensor::new(&first, [1, 10, 8, 64]), Tensor::new(&second, [1, 10, 8, 64]));
        let lse = stream.alloc_zeros::<f32>(2 * 80).expect("room");
        let (one, two) = (lse.slice(..80), lse.slice(80..));
        let (mut o, mut all) = (zeros(&stream, 10 * 8 * 64), stream.alloc_zeros::<f32>(80).expect("room"));
        cuda.calls();
        front
            .merge_attn_states(
                &stream,
                TensorMut::new(&mut o, [1, 10, 8, 64]),
                first,
                &one,
                second,
                &two,
                Some(&mut all),
            )
            .expect("valid");
        let states = [State::new(first, &one), State::new(second, &two)];
        front
            .merge(
                &stream,
                &states.map(|state| state.unit(LseUnit::Two)),
                None,
                TensorMut::new(&mut o, [1, 10, 8, 64]),
                None,
            )
            .expect("valid");
        front
            .merge(
                &stream,
                &[states[0].lse_strides([80, 1, 8])],
                Some(&one),
                TensorMut::new(&mut o, [1, 10, 8, 64]),
                None,
            )
            .expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch merge_", &calls), of("cuMemAlloc", &calls)), (3, 0), "{calls:?}");
        let unlike = [states[0], states[1].unit(LseUnit::Two)];
        let error = front
            .merge(&stream, &unlike, None, TensorMut::new(&mut o, [1, 10, 8, 64]), None)
            .expect_err("two logarithms")
            .to_string();
        assert!(error.contains("states.lse.unit"), "{error}");
        let none: [State<'_, f16>; 0] = [];
        assert!(front.merge(&stream, &none, None, TensorMut::new(&mut o, [1, 10, 8, 64]), None).is_err());
        cuda.faults();
    });
}
