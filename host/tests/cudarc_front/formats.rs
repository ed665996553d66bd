//! Tests KV caches of other formats: int8, values of other columns, and latent caches.
use super::{launched, zeros};
use crate::fake_cuda::in_fake_cuda;
use cudarc::driver::CudaContext;
use ferroflash::cudarc::{
    Append, Cache, FlashAttention, Inputs, Integers, Listed, Pages, PagesMut, ScratchMemory, Tensor,
    TensorMut, Turn,
};
use ferroflash::request::{KvScale, Mask, Positions, RotaryStyle, Slots};
use half::{bf16, f16};

#[test]
fn int8_caches() {
    in_fake_cuda("cudarc_front::formats::int8_caches", |cuda| {
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
        let new = Tensor::of(&new, [1, 4, 2, 64]);
        cuda.calls();
        let into = PagesMut::of(&mut keys, &mut values, shape).token_scales(&mut k_scale, &mut v_scale);
        front.append(&stream, Append::new(new, new, into, Slots::of(&slots))).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        let into = PagesMut::of(&mut keys, &mut values, shape).token_scales(&mut k_scale, &mut short);
        let error = front
            .append(&stream, Append::new(new, new, into, Slots::of(&slots)))
            .expect_err("too few")
            .to_string();
        assert!(error.contains("cache.v_scale.elements: 1279"), "{error}");
        let into = PagesMut::of(&mut keys, &mut values, shape);
        let error = front
            .append(&stream, Append::new(new, new, into, Slots::of(&slots)))
            .expect_err("no scales")
            .to_string();
        assert!(error.contains("a scale for each token and key head"), "{error}");

        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let q = zeros(&stream, 4 * 8 * 64);
        let q = Tensor::of(&q, [4, 1, 8, 64]);
        let pages = |v| Pages::of(&keys, &values, shape).token_scales(&k_scale, v);
        let cached =
            |v| Inputs::of_cache(q, Cache::paged(pages(v), Integers::of(&table), 20, Integers::of(&lengths)));
        let mut scratch = ScratchMemory::new();
        front.attend::<f16>(&stream, &cached(&v_scale), &mut scratch).expect("valid");
        assert_eq!(launched(cuda), ["decode"]);
        let error =
            front.attend::<f16>(&stream, &cached(&short), &mut scratch).map(|_| ()).expect_err("too few");
        assert!(error.to_string().contains("cache.v_scale.elements: 1279"), "{error}");
    });
}

#[test]
fn values_of_half_the_columns() {
    in_fake_cuda("cudarc_front::formats::values_of_half_the_columns", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (keys, values) = (zeros(&stream, 40 * 16 * 128), zeros(&stream, 40 * 16 * 64));
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let q = zeros(&stream, 4 * 8 * 64);
        let q = Tensor::of(&q, [4, 1, 8, 64]);
        let pages = Pages::new(Tensor::of(&keys, [40, 16, 2, 64]), Tensor::of(&values, [40, 16, 2, 32]));
        let inputs =
            Inputs::of_cache(q, Cache::paged(pages, Integers::of(&table), 20, Integers::of(&lengths)));
        cuda.calls();
        let o = front.attend::<f16>(&stream, &inputs, &mut ScratchMemory::new()).expect("valid");
        assert_eq!((o.len(), launched(cuda)), (4 * 8 * 32, vec!["paged".to_owned()]));
        cuda.faults();
    });
}

/// Latent caches of eight bits: e4m3 with a scale, and rows of 656 bytes, dense and with lists of keys.
#[test]
fn latent_caches_of_eight_bits() {
    in_fake_cuda("cudarc_front::formats::latent_caches_of_eight_bits", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let mut rows = stream.alloc_zeros::<u8>(40 * 16 * 656).expect("room");
        let slots = stream.alloc_zeros::<i64>(4).expect("room");
        let new = stream.alloc_zeros::<bf16>(4 * 576).expect("room");
        let new = Tensor::of(&new, [1, 4, 1, 576]);
        cuda.calls();
        let into = PagesMut::of_latent(TensorMut::of(&mut rows, [40, 16, 1, 576]), 512);
        let into = into.scales(KvScale::Value(0.37), KvScale::One);
        front.append(&stream, Append::latent(new, into, Slots::of(&slots))).expect("valid");
        let into = PagesMut::of_latent_scaled(TensorMut::of(&mut rows, [40, 16, 1, 656]), 512);
        front.append(&stream, Append::latent(new, into, Slots::of(&slots))).expect("valid");
        assert_eq!(launched(cuda), ["append", "append"]);
        let into = PagesMut::of_latent_scaled(TensorMut::of(&mut rows, [40, 16, 1, 576]), 512);
        let error = front.append(&stream, Append::latent(new, into, Slots::of(&slots)));
        assert!(error.is_err_and(|error| error.to_string().contains("[pages, page, 1, 656]")));
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let indices = stream.alloc_zeros::<i32>(4 * 100).expect("room");
        let scales = stream.alloc_zeros::<f32>(4).expect("room");
        let q = stream.alloc_zeros::<bf16>(4 * 16 * 576).expect("room");
        let q = Tensor::of(&q, [4, 1, 16, 576]);
        let number = KvScale::Value(0.37);
        let each = KvScale::heads(&scales, [1, 1]);
        let plain =
            |scale| Pages::latent(Tensor::of(&rows, [40, 16, 1, 576]), 512).scales(scale, KvScale::One);
        let scaled = Pages::latent_scaled(Tensor::of(&rows, [40, 16, 1, 656]), 512);
        let mut scratch = ScratchMemory::new();
        let dense = |pages| {
            let cache = Cache::paged(pages, Integers::of(&table), 20, Integers::of(&lengths));
            Inputs::of_cache(q, cache).mask(Mask::Causal).scale(0.0721)
        };
        let listed =
            |pages| Inputs::of_sparse(q, Listed::new(pages, Integers::of(&indices), 100)).scale(0.0721);
        cuda.calls();
        for (inputs, kernels) in [
            (dense(plain(number)), &["mla", "decode"][..]),
            (dense(plain(each)), &["mla", "decode"]),
            (dense(scaled), &["mla", "decode"]),
            (listed(plain(number)), &["sparse"]),
            (listed(scaled), &["sparse"]),
        ] {
            let o = front.attend::<bf16>(&stream, &inputs, &mut scratch).expect("valid");
            assert_eq!(o.len(), 4 * 16 * 512);
            assert_eq!(launched(cuda), kernels);
        }
        let short = Pages::latent_scaled(Tensor::of(&rows, [40, 16, 1, 640]), 512);
        for (words, inputs) in [
            ("rows of e4m3_scaled have 656 bytes", dense(short)),
            ("cache.k_scale", dense(scaled.scales(number, KvScale::One))),
            ("cache.v_scale", dense(plain(number).scales(KvScale::One, number))),
            ("cache.k_scale.elements", listed(plain(KvScale::heads(&scales, [3, 1])))),
        ] {
            let error = front.attend::<bf16>(&stream, &inputs, &mut scratch).map(|_| ()).expect_err(words);
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        cuda.faults();
    });
}

#[test]
fn latent_caches() {
    in_fake_cuda("cudarc_front::formats::latent_caches", |cuda| {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let front = FlashAttention::new(&context).expect("a driver");
        let (shape, mut rows) = ([40, 16, 1, 576], zeros(&stream, 40 * 16 * 576));
        let table = stream.alloc_zeros::<u32>(80).expect("room");
        let lengths = stream.alloc_zeros::<i32>(4).expect("room");
        let slots = stream.alloc_zeros::<i64>(4).expect("room");
        let new = zeros(&stream, 4 * 576);
        let new = Tensor::of(&new, [1, 4, 1, 576]);
        cuda.calls();
        let into = PagesMut::of_latent(TensorMut::of(&mut rows, shape), 512);
        front.append(&stream, Append::latent(new, into, Slots::of(&slots))).expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        // The last 64 columns rotate.
        let (angles, positions) = (zeros(&stream, 100 * 64), stream.alloc_zeros::<i64>(4).expect("room"));
        cuda.calls();
        // Each rotation borrows for its own launch.
        macro_rules! turn {
            () => {
                Turn::cos_sin(Tensor::of(&angles, [1, 100, 1, 64]), Positions::of(&positions))
                    .style(RotaryStyle::Interleaved)
            };
        }
        let into = PagesMut::of_latent(TensorMut::of(&mut rows, shape), 512);
        front
            .append(&stream, Append::latent(new, into, Slots::of(&slots)).rotary(turn!().first_column(512)))
            .expect("valid");
        assert_eq!(launched(cuda), ["append"]);
        let into = PagesMut::of_latent(TensorMut::of(&mut rows, shape), 512);
        let error = front
            .append(&stream, Append::latent(new, into, Slots::of(&slots)).rotary(turn!().first_column(520)));
        assert!(error.is_err_and(|error| error.to_string().contains("64 columns from column 520 on")));

        let mut scratch = ScratchMemory::new();
        let q = zeros(&stream, 4 * 16 * 576);
        let q = Tensor::of(&q, [4, 1, 16, 576]);
        let cache = Cache::paged(
            Pages::latent(Tensor::of(&rows, shape), 512),
            Integers::of(&table),
            20,
            Integers::of(&lengths),
        );
        let inputs = Inputs::of_cache(q, cache).mask(Mask::Causal).scale(0.0721);
        let (o, lse) = front.attend_with_lse::<f16>(&stream, &inputs, &mut scratch).expect("valid");
        assert_eq!((o.len(), lse.len()), (4 * 16 * 512, 4 * 16));
        let o = front
            .flash_attn_with_kvcache::<f16>(&stream, q, cache, 0.0721, true, &mut scratch)
            .expect("valid");
        assert_eq!(o.len(), 4 * 16 * 512);
        // A combine kernel merges the splits of each launch.
        assert_eq!(launched(cuda), ["mla", "decode", "mla", "decode"]);
        // Each query has a list of keys.
        let indices = stream.alloc_zeros::<i32>(4 * 100).expect("room");
        let listed = |topk| {
            let keys =
                Listed::new(Pages::latent(Tensor::of(&rows, shape), 512), Integers::of(&indices), topk);
            Inputs::of_sparse(q, keys).scale(0.0721)
        };
        let (o, lse) = front.attend_with_lse::<f16>(&stream, &listed(100), &mut scratch).expect("valid");
        assert_eq!((o.len(), lse.len()), (4 * 16 * 512, 4 * 16));
        // One thread block takes all keys of so short a list.
        assert_eq!(launched(cuda), ["sparse"]);
        let whole = Cache::paged(
            Pages::latent(Tensor::of(&rows, shape), 520),
            Integers::of(&table),
            20,
            Integers::of(&lengths),
        );
        for (name, inputs) in [
            ("scale", Inputs::of_cache(q, cache)),
            ("head_dim_v 520", Inputs::of_cache(q, whole).scale(0.1)),
            ("softcap on a latent cache", inputs.softcap(30.0)),
            ("indices.elements: 400", listed(101)),
        ] {
            let error =
                front.attend::<f16>(&stream, &inputs, &mut scratch).map(|_| ()).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        cuda.faults();
    });
}
