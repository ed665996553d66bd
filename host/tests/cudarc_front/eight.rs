//! Tests prefill on e4m3 caches: the launched kernels, and refusals.
use super::{launched, of, zeros};
use crate::fake_cuda::in_fake_cuda;
use cudarc::driver::CudaContext;
use ferroflash::cudarc::{Cache, FlashAttention, Inputs, Integers, Pages, ScratchMemory, Tensor};
use ferroflash::request::{KvScale, Mask, Queries, Splits, VarlenQueries};
use half::f16;

#[test]
fn prompts_on_e4m3_caches() {
    in_fake_cuda("cudarc_front::eight::prompts_on_e4m3_caches", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        // 40 pages of 16 keys with 2 heads of 64 columns.
        let shape = [40, 16, 2, 64];
        let bytes = stream.alloc_zeros::<u8>(40 * 16 * 128).expect("room");
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let starts = stream.alloc_zeros::<u32>(5).expect("room");
        let floats = stream.alloc_zeros::<f32>(8).expect("room");
        let q = zeros(&stream, 4 * 64 * 8 * 64);
        let even = Tensor::of(&q, [4, 64, 8, 64]);
        let per_head = KvScale::heads(&floats, [2, 1]);
        let pages = Pages::of(&bytes, &bytes, shape);
        let cache = |k, v| Cache::paged(pages.scales(k, v), Integers::of(&table), 20, Integers::of(&lengths));
        let scaled = cache(per_head, KvScale::Value(0.5));
        let prompts = Inputs::of_cache(even, scaled).mask(Mask::Causal);
        let varlen = |rows| {
            let inputs = Inputs::of_cache(Tensor::of(&q, [1, rows, 8, 64]), scaled);
            inputs.queries(Queries::Varlen(VarlenQueries::of(&starts, 64))).mask(Mask::Causal)
        };
        let mut scratch = ScratchMemory::new();
        cuda.calls();

        // In the first varlen batch, every sequence may have 64 queries. In the second batch, some sequences
        // have fewer, and a decode kernel takes the sequences of few queries.
        for (rows, inputs, launches) in [
            (256, prompts, &["launch paged_f16_e4m3_d64"][..]),
            (
                256,
                prompts.mask(Mask::Window { left: Some(99), right: Some(0) }),
                &["launch paged_f16_e4m3_d64_local"],
            ),
            (256, prompts.softcap(30.0), &["launch paged_f16_e4m3_d64_local"]),
            (256, varlen(256), &["launch paged_f16_e4m3_d64"]),
            (128, varlen(128), &["launch mixed_few_f16_e4m3_d64", "launch mixed_many_f16_e4m3_d64"]),
        ] {
            let (o, lse) = front.attend_with_lse::<f16>(&stream, &inputs, &mut scratch).expect("valid");
            assert_eq!((o.len(), lse.len()), (rows * 8 * 64, rows * 8));
            let calls = cuda.calls();
            let ours = of("launch paged_", &calls) + of("launch mixed_", &calls);
            assert_eq!(ours, launches.len(), "{launches:?}: {calls:?}");
            for launch in launches {
                assert_eq!(of(launch, &calls), 1, "{launch}: {calls:?}");
            }
        }

        let short = floats.slice(..7);
        let short = cache(KvScale::One, KvScale::heads(&short, [2, 1]));
        for (name, inputs) in [
            ("cache.v_scale.elements: 7", Inputs::of_cache(even, short)),
            ("cache.k_scale: -5e-1", Inputs::of_cache(even, cache(KvScale::Value(-0.5), KvScale::One))),
            ("only decode kernels support splits", prompts.splits(Splits::Exactly(2))),
            ("chunked 9", prompts.mask(Mask::Chunked { chunk: 9 })),
        ] {
            let error =
                front.attend::<f16>(&stream, &inputs, &mut scratch).map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        assert_eq!(launched(cuda), Vec::<String>::new());
        cuda.faults();
    });
}
