//! Tests caches, captures and merges.
use super::{launched, of, zeros};
use crate::fake_cuda::in_fake_cuda;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use ferroflash::cudarc::{
    Cache, FlashAttention, Inputs, Pages, PagesMut, PerHead, Rotary, Scale, ScratchMemory, State, Tensor,
    TensorMut,
};
use ferroflash::request::{LseUnit, Mask, RotaryStyle, Splits};
use half::f16;

#[test]
fn caches_of_any_kind() {
    in_fake_cuda("cudarc_front::serving::caches_of_any_kind", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        // The cache has pages of 16 keys with 2 heads of 64 columns, or room for 4 sequences of up to 160
        // keys.
        let (shape, dense) = ([40, 16, 2, 64], [4, 160, 2, 64]);
        let (mut keys, mut values) = (zeros(&stream, 40 * 16 * 128), zeros(&stream, 40 * 16 * 128));
        let bytes = stream.alloc_zeros::<u8>(40 * 16 * 128).expect("room");
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let scales = stream.alloc_zeros::<f32>(8).expect("room");
        let q = zeros(&stream, 4 * 8 * 64);
        let q = Tensor::new(&q, [4, 1, 8, 64]);
        let mut scratch = ScratchMemory::new();

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

        // Keys and queries rotate, in place or not.
        let (cos, sin) = (zeros(&stream, 50 * 32), zeros(&stream, 50 * 32));
        let wide = stream.alloc_zeros::<f32>(50 * 64).expect("room");
        let positions = stream.alloc_zeros::<u32>(4).expect("room");
        let (mut some, mut other) = (zeros(&stream, 4 * 8 * 64), zeros(&stream, 4 * 8 * 64));
        cuda.calls();
        let turn = Rotary::cos_sin(&wide, [50, 64], &positions);
        let turn = turn.queries_in_place(TensorMut::new(&mut other, [1, 4, 8, 64]));
        let into = PagesMut::new(&mut keys, &mut values, shape);
        front.append_rotary(&stream, new, new, into, &slots, turn).expect("valid");
        let turn = || Rotary::new(&cos, &sin, [50, 32], &positions);
        let (from, to) = (Tensor::new(&other, [1, 4, 8, 64]), TensorMut::new(&mut some, [1, 4, 8, 64]));
        let into = PagesMut::new(&mut keys, &mut values, shape);
        front.append_rotary(&stream, new, new, into, &slots, turn().queries(from, to)).expect("valid");
        assert_eq!(launched(cuda), ["append"; 2]);
        let into = PagesMut::new(&mut keys, &mut values, shape);
        let error = front.append_rotary(&stream, new, new, into, &slots, turn().first_column(8));
        assert!(error.is_err_and(|error| error.to_string().contains("64 columns from column 8 on")));

        // Keys and values are in one buffer, in both orders. In the other case, the last value is missing
        // from the buffer.
        let (mut both, mut short) =
            (zeros(&stream, 2 * 40 * 16 * 128), zeros(&stream, 2 * 40 * 16 * 128 - 1));
        let into = PagesMut::interleaved(&mut both, shape);
        front.append(&stream, new, new, into, &slots).expect("valid");
        front
            .append(&stream, new, new, PagesMut::interleaved(&mut both, shape).hnd(), &slots)
            .expect("valid");
        // The strides describe the same pages, but the distance of two rows is doubled.
        let half = PagesMut::interleaved(&mut both, [20, 16, 2, 64]).strides([8192, 256, 64, 1]);
        front.append(&stream, new, new, half, &slots).expect("valid");
        let error = front.append(&stream, new, new, PagesMut::interleaved(&mut short, shape), &slots);
        assert!(error.is_err_and(|error| error.to_string().contains("cache.values.elements")));
        assert_eq!(launched(cuda), ["append"; 3]);

        // The scratch memory grows once. Every later launch finds enough memory.
        let pages = Pages::new(&keys, &values, shape);
        let eight = Pages::new(&bytes, &bytes, shape);
        let per_head = PerHead::new(&scales).strides([2, 1]);
        let scaled = eight.scales(Scale::Heads(per_head), Scale::Value(0.5));
        let paged = Cache::paged(pages, &table, 20, &lengths);
        let sinks = &scales;
        front.reserve(&stream, &Inputs::cached(q, paged), &mut scratch).expect("valid");
        let had = scratch.bytes();
        assert!(had.workspace > 0 && had.counters > 0, "{had:?}");
        front.flash_attn_with_kvcache(&stream, q, paged, 0.125, true, &mut scratch).expect("valid");
        let mut o = zeros(&stream, 4 * 8 * 64);
        cuda.calls();
        let mut into = |request: &Inputs<'_, f16>| {
            front.attend_into(&stream, request, &mut scratch, TensorMut::new(&mut o, [4, 1, 8, 64]), None)
        };
        into(&Inputs::cached(q, paged).sinks(sinks).softcap(30.0)).expect("valid");
        into(&Inputs::cached(q, Cache::dense(pages.strides([2048, 128, 64, 1]), &lengths))).expect("valid");
        into(&Inputs::cached(q, Cache::dense(Pages::new(&keys, &values, dense), &lengths).max_k(100)))
            .expect("valid");
        into(&Inputs::cached(q, Cache::paged(Pages::interleaved(&both, shape), &table, 20, &lengths)))
            .expect("valid");
        into(&Inputs::cached(
            q,
            Cache::dense(Pages::new(&keys, &values, dense).hnd(), &lengths).rows(&lengths),
        ))
        .expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch decode_", &calls), of("launch", &calls)), (5, 5), "{calls:?}");
        assert_eq!(of("cuMemAlloc", &calls), 0, "{calls:?}");
        // A prefix of one page saves too little, so the launch reads whole sequences.
        into(&Inputs::cached(q, paged).shared_prefixes(2, 1, &lengths)).expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch decode_", &calls), of("launch", &calls)), (1, 1), "{calls:?}");
        let short = into(&Inputs::cached(q, paged).shared_prefixes(1, 1, &lengths.slice(1..)));
        assert!(short.is_err_and(|error| error.to_string().contains("shared_prefixes.rest.lengths")));
        let chunks = into(&Inputs::cached(q, paged).splits(Splits::Exactly(64))).expect_err("too small");
        assert!(chunks.to_string().contains("workspace.bytes"), "{chunks}");
        assert_eq!(scratch.bytes(), had);

        // The first case has an e4m3 cache. The second case has varlen queries: one kernel takes the
        // sequences of few queries, and another kernel takes the other sequences. The third case has slopes,
        // which decode kernels do not take.
        let (_, lse) = front
            .attend_with_lse(
                &stream,
                &Inputs::cached(q, Cache::paged(scaled, &table, 20, &lengths)),
                &mut scratch,
            )
            .expect("valid");
        assert_eq!((lse.len(), launched(cuda)), (4 * 8, vec!["decode".to_owned()]));
        let rows = zeros(&stream, 4 * 8 * 64);
        let flat = Tensor::new(&rows, [1, 4, 8, 64]);
        let starts = stream.alloc_zeros::<u32>(5).expect("room");
        let packed = Inputs::cached(flat, paged).varlen_queries(&starts, 2).mask(Mask::Causal);
        front.attend(&stream, &packed, &mut scratch).expect("valid");
        front
            .attend(&stream, &Inputs::cached(q, paged).alibi(PerHead::new(&scales)), &mut scratch)
            .expect("valid");
        assert_eq!(launched(cuda), ["mixed", "mixed", "paged"]);

        let three = table.slice(..3);
        let cases = [
            ("cache.table", Inputs::cached(q, Cache::paged(pages, &table, 21, &lengths))),
            ("q.shape", Inputs::cached(q, paged).varlen_queries(&starts, 2)),
            ("cache.lengths", Inputs::cached(q, Cache::dense(pages, &three))),
            (
                "cache.keys",
                Inputs::cached(q, Cache::dense(Pages::new(&keys, &values, [41, 16, 2, 64]), &lengths)),
            ),
        ];
        for (name, request) in &cases {
            let error = front.attend(&stream, request, &mut scratch).map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        cuda.faults();
    });
}

#[test]
fn int8_caches() {
    in_fake_cuda("cudarc_front::serving::int8_caches", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        // 40 pages of 16 keys with 2 heads of 64 columns.
        let shape = [40, 16, 2, 64];
        let integers = || stream.alloc_zeros::<i8>(40 * 16 * 128).expect("room");
        let floats = |count| stream.alloc_zeros::<f32>(count).expect("room");
        let (mut keys, mut values) = (integers(), integers());
        let (mut k_scale, mut v_scale, mut short) = (floats(1280), floats(1280), floats(1279));
        let slots = stream.alloc_zeros::<i64>(4).expect("room");
        let new = zeros(&stream, 4 * 2 * 64);
        let new = Tensor::new(&new, [1, 4, 2, 64]);
        cuda.calls();
        let into = PagesMut::new(&mut keys, &mut values, shape).token_scales(&mut k_scale, &mut v_scale);
        front.append(&stream, new, new, into, &slots).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        let into = PagesMut::new(&mut keys, &mut values, shape).token_scales(&mut k_scale, &mut short);
        let error = front.append(&stream, new, new, into, &slots).expect_err("too few").to_string();
        assert!(error.contains("cache.v_scale.elements: 1279"), "{error}");
        let into = PagesMut::new(&mut keys, &mut values, shape);
        let error = front.append(&stream, new, new, into, &slots).expect_err("no scales").to_string();
        assert!(error.contains("a scale for each token and key head"), "{error}");

        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let q = zeros(&stream, 4 * 8 * 64);
        let q = Tensor::new(&q, [4, 1, 8, 64]);
        let pages = |v| Pages::new(&keys, &values, shape).token_scales(&k_scale, v);
        let cached = |v| Inputs::cached(q, Cache::paged(pages(v), &table, 20, &lengths));
        let mut scratch = ScratchMemory::new();
        front.attend(&stream, &cached(&v_scale), &mut scratch).expect("valid");
        assert_eq!(launched(cuda), ["decode"]);
        let error = front.attend(&stream, &cached(&short), &mut scratch).map(|_| ()).expect_err("too few");
        assert!(error.to_string().contains("cache.v_scale.elements: 1279"), "{error}");
    });
}

#[test]
fn values_of_half_the_columns() {
    in_fake_cuda("cudarc_front::serving::values_of_half_the_columns", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (keys, values) = (zeros(&stream, 40 * 16 * 128), zeros(&stream, 40 * 16 * 64));
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let q = zeros(&stream, 4 * 8 * 64);
        let q = Tensor::new(&q, [4, 1, 8, 64]);
        let pages = Pages::new(&keys, &values, [40, 16, 2, 64]).values(32, [1024, 64, 32, 1]);
        let inputs = Inputs::cached(q, Cache::paged(pages, &table, 20, &lengths));
        cuda.calls();
        let o = front.attend(&stream, &inputs, &mut ScratchMemory::new()).expect("valid");
        assert_eq!((o.len(), launched(cuda)), (4 * 8 * 32, vec!["paged".to_owned()]));
        cuda.faults();
    });
}

#[test]
fn latent_caches() {
    in_fake_cuda("cudarc_front::serving::latent_caches", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (shape, mut rows) = ([40, 16, 1, 576], zeros(&stream, 40 * 16 * 576));
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let slots = stream.alloc_zeros::<i64>(4).expect("room");
        let new = zeros(&stream, 4 * 576);
        let new = Tensor::new(&new, [1, 4, 1, 576]);
        cuda.calls();
        let into = PagesMut::latent(&mut rows, shape, 512);
        front.append_latent(&stream, new, into, &slots).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        // The last 64 columns rotate.
        let (angles, positions) = (zeros(&stream, 100 * 64), stream.alloc_zeros::<i64>(4).expect("room"));
        cuda.calls();
        let turn = || Rotary::cos_sin(&angles, [100, 64], &positions).style(RotaryStyle::Interleaved);
        let into = PagesMut::latent(&mut rows, shape, 512);
        front.append_latent_rotary(&stream, new, into, &slots, turn().first_column(512)).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        let into = PagesMut::latent(&mut rows, shape, 512);
        let error = front.append_latent_rotary(&stream, new, into, &slots, turn().first_column(520));
        assert!(error.is_err_and(|error| error.to_string().contains("64 columns from column 520 on")));
        let apart = &mut zeros(&stream, 40 * 16 * 576);
        let wide = PagesMut::new(&mut rows, apart, shape);
        let error = front.append_latent(&stream, new, wide, &slots).expect_err("no latent cache").to_string();
        assert!(error.contains("use PagesMut::latent"), "{error}");

        let mut scratch = ScratchMemory::new();
        let q = zeros(&stream, 4 * 16 * 576);
        let q = Tensor::new(&q, [4, 1, 16, 576]);
        let cache = Cache::paged(Pages::latent(&rows, shape, 512), &table, 20, &lengths);
        let inputs = Inputs::cached(q, cache).mask(Mask::Causal).scale(0.0721);
        let (o, lse) = front.attend_with_lse(&stream, &inputs, &mut scratch).expect("valid");
        assert_eq!((o.len(), lse.len()), (4 * 16 * 512, 4 * 16));
        let o = front.flash_attn_with_kvcache(&stream, q, cache, 0.0721, true, &mut scratch).expect("valid");
        assert_eq!(o.len(), 4 * 16 * 512);
        // A combine kernel merges the splits of each launch.
        assert_eq!(launched(cuda), ["mla", "decode", "mla", "decode"]);
        let whole = Cache::paged(Pages::latent(&rows, shape, 520), &table, 20, &lengths);
        for (name, inputs) in [
            ("scale", Inputs::cached(q, cache)),
            ("head_dim_v 520", Inputs::cached(q, whole).scale(0.1)),
            ("softcap on a latent cache", inputs.softcap(30.0)),
        ] {
            let error = front.attend(&stream, &inputs, &mut scratch).map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        cuda.faults();
    });
}

/// A graph does not own the memory that it uses. FerroFlash's memory stays allocated, and never grows during
/// a capture.
#[test]
fn what_was_captured_stays() {
    in_fake_cuda("cudarc_front::serving::what_was_captured_stays", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let (shape, memory) = ([40, 16, 2, 64], zeros(&stream, 40 * 16 * 128));
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let (q, mut o) = (zeros(&stream, 4 * 8 * 64), zeros(&stream, 4 * 8 * 64));
        let q = Tensor::new(&q, [4, 1, 8, 64]);
        let cache = Cache::paged(Pages::new(&memory, &memory, shape), &table, 20, &lengths);
        let request = Inputs::cached(q, cache);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let before = cuda.left();
        for captures in [false, true] {
            let (front, mut scratch) =
                (FlashAttention::new(&context).expect("a driver"), ScratchMemory::new());
            if captures {
                stream.begin_capture(mode).expect("begun");
                let error = front.reserve(&stream, &request, &mut scratch).expect_err("it grows").to_string();
                assert!(error.contains("captures a graph") && error.contains("reserve"), "{error}");
                drop(stream.end_capture(flags).expect("ended"));
            }
            front.reserve(&stream, &request, &mut scratch).expect("valid");
            let mut launch = || {
                front.attend_into(
                    &stream,
                    &request,
                    &mut scratch,
                    TensorMut::new(&mut o, [4, 1, 8, 64]),
                    None,
                )
            };
            launch().expect("valid");
            if captures {
                stream.begin_capture(mode).expect("begun");
                launch().expect("valid");
                drop(stream.end_capture(flags).expect("ended"));
            }
            drop((front, scratch));
            // The launch leaves the kernel, the workspace and the counters.
            let more = |what: &str| of(what, &cuda.left()) - of(what, &before);
            assert_eq!([more("module"), more("memory")], if captures { [1, 2] } else { [0; 2] });
        }
        cuda.faults();
    });
}

#[test]
fn states_are_merged() {
    in_fake_cuda("cudarc_front::serving::states_are_merged", |cuda| {
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
