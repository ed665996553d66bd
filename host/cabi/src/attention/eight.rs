//! Tests prefill on e4m3 KV caches through the C ABI: the request of a struct, its kernel, and refusals.
use super::examples::{at, cache, request, valid};
use crate::structs::AttentionArgs;
use ferroflash::request::{KeysValues, KvScale, Scratch, TensorView};
use ferroflash::{Capabilities, DType, plan};

/// FERROFLASH_E4M3.
const E4M3: i32 = 2;

/// Returns a prompt of 512 queries for each of 16 sequences, on pages of 16 e4m3 keys.
fn prompts() -> AttentionArgs {
    AttentionArgs {
        seqlen_q: 512,
        mask: 1,
        cache_dtype: E4M3,
        k_scale: 0.25,
        v_scales: at(8),
        scales_strides: [0, 1],
        q_strides: [512 * 32 * 128, 32 * 128, 128, 1],
        o_strides: [512 * 32 * 128, 32 * 128, 128, 1],
        ..cache()
    }
}

/// Returns the prompts as varlen queries, with `total_q` queries in all.
fn varlen(total_q: i64) -> AttentionArgs {
    AttentionArgs { cu_seqlens_q: at(7), total_q, ..prompts() }
}

#[test]
fn scales_and_types() {
    let r = valid(&prompts());
    let KeysValues::Cache(cache) = r.kv else { panic!("a cache") };
    let [TensorView { dtype: keys, .. }, TensorView { dtype: values, .. }] =
        [cache.pages.keys, cache.pages.values];
    assert_eq!((r.q.dtype, keys, values), (DType::F16, DType::E4m3, DType::E4m3));
    let of_heads = KvScale::Device { address: 8 << 40, elements: 8, strides: [0, 1] };
    assert_eq!(cache.pages.scales, [KvScale::Value(0.25), of_heads]);
}

#[test]
fn kernels_of_each_card() {
    let narrow = AttentionArgs { page: 4, k_strides: [4 * 1024, 1024, 128, 1], ..prompts() };
    let narrow = AttentionArgs { v_strides: narrow.k_strides, ..narrow };
    let window = AttentionArgs { mask: 3, window_left: 99, ..prompts() };
    for (card, args, symbol) in [
        ("h200", prompts(), "hopper_paged_f16_e4m3_d128_causal_128x128"),
        ("h200", varlen(16 * 512), "hopper_paged_f16_e4m3_d128_causal_128x128"),
        // A mean of 32 queries per sequence: some sequences may have few queries.
        ("h200", varlen(16 * 32), "mixed_few_f16_e4m3_d128_causal_16_rows_native"),
        ("h200", narrow, "paged_f16_e4m3_d128_causal_128x32_native"),
        ("h200", window, "hopper_paged_f16_e4m3_d128_local_128x80"),
        ("l4", prompts(), "paged_f16_e4m3_d128_causal_128x32_native"),
        ("a100", prompts(), "paged_f16_e4m3_d128_local_128x32"),
        ("a100", varlen(16 * 32), "paged_f16_e4m3_d128_local_128x32"),
    ] {
        let on = Capabilities::profile(card).expect("known");
        let plan = plan(&valid(&args).scratch(Scratch::Fastest), on).expect(symbol);
        assert_eq!(plan.contract().symbol, symbol, "{card}: {}", plan.reason());
    }
}

#[test]
fn refusals() {
    let wide = [512 * 32 * 264, 32 * 264, 264, 1];
    let pages = [16 * 8 * 272, 8 * 272, 272, 1];
    let wide = AttentionArgs { head_dim: 264, q_strides: wide, o_strides: wide, ..prompts() };
    let wider = [512 * 32 * 272, 32 * 272, 272, 1];
    let wider = AttentionArgs { head_dim: 272, q_strides: wider, o_strides: wider, ..wide };
    let wider = AttentionArgs { k_strides: pages, v_strides: pages, ..wider };
    for (args, words) in [
        (
            AttentionArgs { k_scale: -1.0, ..prompts() },
            "cache.k_scale: -1e0; it must be a normal f32 above 0",
        ),
        (wide, "head_dim 264 of an e4m3 cache: kernels take multiples of 16"),
        (wider, "e4m3 KV caches support head_dim up to 256"),
        (AttentionArgs { splits: 3, ..prompts() }, "only decode kernels support splits"),
        (AttentionArgs { dtype: E4M3, ..prompts() }, "q, k, v and o must be f16 or bf16"),
        (AttentionArgs { sinks: at(9), ..varlen(16 * 512) }, "attention sinks"),
    ] {
        let on = Capabilities::profile("h200").expect("known");
        let error = request(&args).and_then(|r| plan(&r.scratch(Scratch::Fastest), on)).expect_err(words);
        assert!(error.to_string().contains(words), "{error}, should have {words}");
    }
}
