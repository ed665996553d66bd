//! Tests caches, captures and merges.
use super::{launched, of, zeros};
use crate::fake_cuda::in_fake_cuda;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use ferroflash::cudarc::{
    Append, Cache, FlashAttention, Inputs, Integers, Pages, PagesMut, ScratchMemory, Slice, State, Tensor,
    TensorMut, Turn,
};
use ferroflash::request::{
    AlibiSlopes, KvScale, LseUnit, LseView, Mask, Positions, Queries, SharedPrefixes, Sinks, Slots, Splits,
    VarlenQueries,
};
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
        let q = Tensor::of(&q, [4, 1, 8, 64]);
        let mut scratch = ScratchMemory::new();

        // New tokens go into the cache.
        let slots = stream.alloc_zeros::<i64>(4).expect("room");
        let new = zeros(&stream, 4 * 2 * 64);
        let new = Tensor::of(&new, [1, 4, 2, 64]);
        cuda.calls();
        let into = PagesMut::of(&mut keys, &mut values, shape);
        front.append(&stream, Append::new(new, new, into, Slots::of(&slots))).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        let scaled = PagesMut::of(&mut keys, &mut values, shape).scales(KvScale::Value(2.0), KvScale::One);
        let error = front
            .append(&stream, Append::new(new, new, scaled, Slots::of(&slots)))
            .expect_err("a scale of f16")
            .to_string();
        assert!(error.contains("cache.k_scale"), "{error}");

        // Keys and queries rotate, in place or not.
        let (cos, sin) = (zeros(&stream, 50 * 32), zeros(&stream, 50 * 32));
        let wide = stream.alloc_zeros::<f32>(50 * 64).expect("room");
        let positions = stream.alloc_zeros::<u32>(4).expect("room");
        let (mut some, mut other) = (zeros(&stream, 4 * 8 * 64), zeros(&stream, 4 * 8 * 64));
        cuda.calls();
        let turn = Turn::cos_sin(Tensor::of(&wide, [1, 50, 1, 64]), Positions::of(&positions));
        let turn = turn.queries_in_place(TensorMut::of(&mut other, [1, 4, 8, 64]));
        let into = PagesMut::of(&mut keys, &mut values, shape);
        front.append(&stream, Append::new(new, new, into, Slots::of(&slots)).rotary(turn)).expect("valid");
        // Each rotation borrows for its own launch.
        macro_rules! turn {
            () => {
                Turn::new(
                    Tensor::of(&cos, [1, 50, 1, 32]),
                    Tensor::of(&sin, [1, 50, 1, 32]),
                    Positions::of(&positions),
                )
            };
        }
        let (from, to) = (Tensor::of(&other, [1, 4, 8, 64]), TensorMut::of(&mut some, [1, 4, 8, 64]));
        let into = PagesMut::of(&mut keys, &mut values, shape);
        front
            .append(&stream, Append::new(new, new, into, Slots::of(&slots)).rotary(turn!().queries(from, to)))
            .expect("valid");
        assert_eq!(launched(cuda), ["append"; 2]);
        let into = PagesMut::of(&mut keys, &mut values, shape);
        let error = front
            .append(&stream, Append::new(new, new, into, Slots::of(&slots)).rotary(turn!().first_column(8)));
        assert!(error.is_err_and(|error| error.to_string().contains("64 columns from column 8 on")));

        // Keys and values are in one buffer, in both orders. In the other case, the last value is missing
        // from the buffer.
        let (mut both, mut short) =
            (zeros(&stream, 2 * 40 * 16 * 128), zeros(&stream, 2 * 40 * 16 * 128 - 1));
        let into = PagesMut::of_both(TensorMut::of(&mut both, shape).strides([4096, 128, 64, 1]));
        front.append(&stream, Append::new(new, new, into, Slots::of(&slots))).expect("valid");
        front
            .append(
                &stream,
                Append::new(
                    new,
                    new,
                    PagesMut::of_both(TensorMut::of(&mut both, shape).strides([4096, 64, 1024, 1])),
                    Slots::of(&slots),
                ),
            )
            .expect("valid");
        // The strides describe the same pages, but the distance of two rows is doubled.
        let half = PagesMut::of_both(TensorMut::of(&mut both, [20, 16, 2, 64]).strides([8192, 256, 64, 1]));
        front.append(&stream, Append::new(new, new, half, Slots::of(&slots))).expect("valid");
        let error = front.append(
            &stream,
            Append::new(
                new,
                new,
                PagesMut::of_both(TensorMut::of(&mut short, shape).strides([4096, 128, 64, 1])),
                Slots::of(&slots),
            ),
        );
        assert!(error.is_err_and(|error| error.to_string().contains("cache.values.elements")));
        assert_eq!(launched(cuda), ["append"; 3]);

        // The scratch memory grows once. Every later launch finds enough memory.
        let pages = Pages::of(&keys, &values, shape);
        let eight = Pages::of(&bytes, &bytes, shape);
        let per_head = KvScale::heads(&scales, [2, 1]);
        let scaled = eight.scales(per_head, KvScale::Value(0.5));
        let paged = Cache::paged(pages, Integers::of(&table), 20, Integers::of(&lengths));
        let sinks = Sinks::of(&scales);
        front.reserve(&stream, &Inputs::of_cache(q, paged), &mut scratch).expect("valid");
        let had = scratch.bytes();
        assert!(had.workspace > 0 && had.counters > 0, "{had:?}");
        front.flash_attn_with_kvcache::<f16>(&stream, q, paged, 0.125, true, &mut scratch).expect("valid");
        let mut o = zeros(&stream, 4 * 8 * 64);
        cuda.calls();
        let mut into = |request: &Inputs<'_>| {
            front.attend_into(&stream, request.writing(TensorMut::of(&mut o, [4, 1, 8, 64])), &mut scratch)
        };
        into(&Inputs::of_cache(q, paged).sinks(sinks).softcap(30.0)).expect("valid");
        into(&Inputs::of_cache(q, Cache::dense(pages.strides([2048, 128, 64, 1]), Integers::of(&lengths))))
            .expect("valid");
        into(&Inputs::of_cache(
            q,
            Cache::dense(Pages::of(&keys, &values, dense), Integers::of(&lengths)).max_k(100),
        ))
        .expect("valid");
        into(&Inputs::of_cache(
            q,
            Cache::paged(
                Pages::of_both(&both, shape, false),
                Integers::of(&table),
                20,
                Integers::of(&lengths),
            ),
        ))
        .expect("valid");
        into(&Inputs::of_cache(
            q,
            Cache::dense(
                Pages::of(&keys, &values, dense).strides([20480, 64, 10240, 1]),
                Integers::of(&lengths),
            )
            .rows(Integers::of(&lengths)),
        ))
        .expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch decode_", &calls), of("launch", &calls)), (5, 5), "{calls:?}");
        assert_eq!(of("cuMemAlloc", &calls), 0, "{calls:?}");
        // A prefix of one page saves too little, so the launch reads whole sequences.
        into(&Inputs::of_cache(q, paged).shared_prefixes(SharedPrefixes::equal(
            2,
            1,
            Integers::of(&lengths),
        )))
        .expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch decode_", &calls), of("launch", &calls)), (1, 1), "{calls:?}");
        let short = into(&Inputs::of_cache(q, paged).shared_prefixes(SharedPrefixes::equal(
            1,
            1,
            Integers::of(&lengths.slice(1..)),
        )));
        assert!(short.is_err_and(|error| error.to_string().contains("shared_prefixes.rest.lengths")));
        let chunks = into(&Inputs::of_cache(q, paged).splits(Splits::Exactly(64))).expect_err("too small");
        assert!(chunks.to_string().contains("workspace.bytes"), "{chunks}");
        assert_eq!(scratch.bytes(), had);

        // The first case has an e4m3 cache. The second case has varlen queries: one kernel takes the
        // sequences of few queries, and another kernel takes the other sequences, whose tiles a third kernel
        // numbers. The third case has slopes, which decode kernels do not take.
        let (_, lse) = front
            .attend_with_lse::<f16>(
                &stream,
                &Inputs::of_cache(q, Cache::paged(scaled, Integers::of(&table), 20, Integers::of(&lengths))),
                &mut scratch,
            )
            .expect("valid");
        assert_eq!((lse.len(), launched(cuda)), (4 * 8, vec!["decode".to_owned()]));
        let rows = zeros(&stream, 4 * 8 * 64);
        let flat = Tensor::of(&rows, [1, 4, 8, 64]);
        let starts = stream.alloc_zeros::<u32>(5).expect("room");
        let varlen = Inputs::of_cache(flat, paged)
            .queries(Queries::Varlen(VarlenQueries::of(&starts, 2)))
            .mask(Mask::Causal);
        front.attend::<f16>(&stream, &varlen, &mut scratch).expect("valid");
        front
            .attend::<f16>(&stream, &Inputs::of_cache(q, paged).alibi(AlibiSlopes::of(&scales)), &mut scratch)
            .expect("valid");
        assert_eq!(launched(cuda), ["mixed", "number", "mixed", "paged"]);

        let three = table.slice(..3);
        let cases = [
            (
                "cache.table",
                Inputs::of_cache(q, Cache::paged(pages, Integers::of(&table), 21, Integers::of(&lengths))),
            ),
            ("q.shape", Inputs::of_cache(q, paged).queries(Queries::Varlen(VarlenQueries::of(&starts, 2)))),
            ("cache.lengths", Inputs::of_cache(q, Cache::dense(pages, Integers::of(&three)))),
            (
                "cache.keys",
                Inputs::of_cache(
                    q,
                    Cache::dense(Pages::of(&keys, &values, [41, 16, 2, 64]), Integers::of(&lengths)),
                ),
            ),
        ];
        for (name, request) in &cases {
            let error =
                front.attend::<f16>(&stream, request, &mut scratch).map(|_| ()).expect_err(name).to_string();
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
        let q = Tensor::of(&q, [4, 1, 8, 64]);
        let cache = Cache::paged(
            Pages::of(&memory, &memory, shape),
            Integers::of(&table),
            20,
            Integers::of(&lengths),
        );
        let request = Inputs::of_cache(q, cache);
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
                    request.writing(TensorMut::of(&mut o, [4, 1, 8, 64])),
                    &mut scratch,
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
        let (first, second) = (Tensor::of(&first, [1, 10, 8, 64]), Tensor::of(&second, [1, 10, 8, 64]));
        let lse = stream.alloc_zeros::<f32>(2 * 80).expect("room");
        let (one, two) = (lse.slice(..80), lse.slice(80..));
        let (mut o, mut all) = (zeros(&stream, 10 * 8 * 64), stream.alloc_zeros::<f32>(80).expect("room"));
        cuda.calls();
        let states = [State::of(first, Slice::new(&one)), State::of(second, Slice::new(&two))];
        let into = TensorMut::of(&mut o, [1, 10, 8, 64]);
        front.merge(&stream, &states, None, into, Some(&mut all)).expect("valid");
        front
            .merge(
                &stream,
                &states.map(|state| State { lse: state.lse.unit(LseUnit::Two), ..state }),
                None,
                TensorMut::of(&mut o, [1, 10, 8, 64]),
                None,
            )
            .expect("valid");
        front
            .merge(
                &stream,
                &[State {
                    lse: LseView::new(Slice::new(&one), 80, [1, 8, 10], [80, 1]).row_stride(8),
                    ..states[0]
                }],
                Some(Sinks::of(&one)),
                TensorMut::of(&mut o, [1, 10, 8, 64]),
                None,
            )
            .expect("valid");
        let calls = cuda.calls();
        assert_eq!((of("launch merge_", &calls), of("cuMemAlloc", &calls)), (3, 0), "{calls:?}");
        let unlike = [states[0], State { lse: states[1].lse.unit(LseUnit::Two), ..states[1] }];
        let error = front
            .merge(&stream, &unlike, None, TensorMut::of(&mut o, [1, 10, 8, 64]), None)
            .expect_err("two logarithms")
            .to_string();
        assert!(error.contains("states.lse.unit"), "{error}");
        let none: [State<'_>; 0] = [];
        assert!(front.merge(&stream, &none, None, TensorMut::of(&mut o, [1, 10, 8, 64]), None).is_err());
        cuda.faults();
    });
}
