//! Tests int8 KV caches: the kernels that the planner selects, the refused requests, and the scales in the
//! parameters.
use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use crate::parts::cache;
use core::mem::{offset_of, size_of};
use ferroflash::{request::*, *};
use spec::{AppendParams, DecodeOrder, DecodeParams, ManyParams, PagedParams, PerHead};

/// 8 sequences of 1 query on at most 4096 keys, in 2048 pages of 16.
const ONE: Shape = Shape {
    dtype: DType::F16,
    batch: 8,
    queries: 1,
    packed: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};
const PROMPT: Shape = Shape { queries: 512, ..ONE };
/// Varlen queries; with 1000 rows, a mixed batch.
const MIXED: Shape = Shape { packed: true, ..PROMPT };
const FEW_AND_MANY: &str = "the sequences of few queries";

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

fn same(r: AttentionRequest<'static>) -> AttentionRequest<'static> {
    r
}

/// A causal request on an int8 cache.
fn request(shape: Shape) -> AttentionRequest<'static> {
    let mut r = decode(shape).mask(Mask::Causal);
    if shape.packed {
        for view in [&mut r.q, &mut r.o] {
            view.shape[1] = view.shape[1].min(1000);
        }
    }
    let pages = &mut cache(&mut r).pages;
    let int8 = |view: TensorView| TensorView { dtype: DType::Int8, ..view };
    let [count, page, heads, _] = pages.keys.shape;
    let scales = |n: u64| TokenScales::contiguous(n * FAR, (count * page * heads) as u64, heads);
    *pages = KvPages::int8(int8(pages.keys), int8(pages.values), scales(8), scales(9));
    r
}

const WINDOW: Mask = Mask::Window { left: Some(99), right: Some(0) };

/// A card, a shape, the request, the kernel, words of the reason.
#[rustfmt::skip]
const PLANS: &[(&str, Shape, Change, &str, &str)] = &[
    ("l4", ONE, same, "decode_f16_int8_d128_local_8_rows", ""),
    ("a100", ONE, |r| r.mask(Mask::Full), "decode_f16_int8_d128_local_8_rows", ""),
    ("h200", ONE, |r| r.mask(WINDOW), "decode_f16_int8_d128_local_8_rows", ""),
    ("h200", Shape { dtype: DType::Bf16, head_dim: 64, ..ONE }, |r| r.softcap(30.0),
        "decode_bf16_int8_d64_local_8_rows", ""),
    ("h200", Shape { page: None, ..ONE }, |r| r.splits(Splits::CHUNK),
        "decode_f16_int8_d128_local_8_rows", ""),
    ("l4", Shape { queries: 12, ..ONE }, same, "decode_f16_int8_d128_local_16_rows", ""),
    ("h200", Shape { head_dim: 64, queries: 12, ..ONE }, |r| r.mask(Mask::Full),
        "decode_f16_int8_d64_local_16_rows", ""),
    ("l4", PROMPT, same, "paged_f16_int8_d128_local_128x32", "more than 64 rows"),
    ("a100", Shape { dtype: DType::Bf16, head_dim: 64, ..PROMPT }, |r| r.mask(WINDOW),
        "paged_bf16_int8_d64_local_128x64", "more than 64 rows"),
    ("h200", PROMPT, same, "paged_f16_int8_d128_local_128x32", "an int8 KV cache"),
    ("l4", Shape { batch: 1, ..MIXED }, same, "paged_f16_int8_d128_local_128x32", "varlen queries"),
    ("a100", Shape { head_dim: 256, ..ONE }, same, "decode_f16_int8_d256_local_8_rows", ""),
    ("l4", Shape { head_dim: 144, queries: 16, ..ONE }, |r| r.mask(WINDOW),
        "decode_f16_int8_d256_local_8_rows", "more rows than a block holds"),
    ("l4", Shape { head_dim: 192, ..PROMPT }, same, "paged_f16_int8_d256_local_64x32", "more than 64 rows"),
    ("h200", Shape { dtype: DType::Bf16, head_dim: 256, ..PROMPT }, |r| r.softcap(30.0),
        "paged_bf16_int8_d256_local_64x32", "an int8 KV cache"),
    // Mixed batches, on every card.
    ("a100", MIXED, same, "mixed_few_f16_int8_d128_causal_16_rows", FEW_AND_MANY),
    ("l4", MIXED, |r| r.mask(Mask::Full), "mixed_few_f16_int8_d128_causal_16_rows", FEW_AND_MANY),
    ("h200", MIXED, same, "mixed_few_f16_int8_d128_causal_16_rows", FEW_AND_MANY),
    ("b200", Shape { dtype: DType::Bf16, head_dim: 48, ..MIXED }, same,
        "mixed_few_bf16_int8_d64_causal_16_rows", FEW_AND_MANY),
    ("h200", MIXED, |r| r.mask(WINDOW), "paged_f16_int8_d128_local_128x32", "an int8 KV cache"),
    ("l4", MIXED, |r| r.softcap(30.0), "paged_f16_int8_d128_local_128x32", "varlen queries"),
    ("l4", MIXED, |r| r.splits(Splits::CHUNK), "paged_f16_int8_d128_local_128x32", "varlen queries"),
    ("l4", Shape { head_dim: 256, ..MIXED }, same, "paged_f16_int8_d256_local_64x32", "varlen queries"),
];

#[test]
fn plans() {
    for (name, shape, change, symbol, why) in PLANS {
        let request = change(request(*shape)).scratch(Scratch::Fastest);
        let plan = plan(&request, card(name)).unwrap_or_else(|e| panic!("{symbol}: {e}"));
        assert_eq!(plan.contract().symbol, *symbol, "{name}: {}", plan.reason());
        assert!(plan.reason().contains(why), "{symbol}: {}", plan.reason());
    }
}

fn of_keys(scale: TokenScales) -> impl Fn(AttentionRequest<'static>) -> AttentionRequest<'static> {
    move |mut r| {
        cache(&mut r).pages.scales[0] = KvScale::Tokens(scale);
        r
    }
}

/// Returns the words of a refusal.
fn refused(shape: Shape, change: impl Fn(AttentionRequest<'static>) -> AttentionRequest<'static>) -> String {
    plan(&change(request(shape)), card("l4")).expect_err("refused").to_string()
}

#[test]
fn refusals() {
    let good = TokenScales::contiguous(8 * FAR, 1 << 40, 8);
    let check = |error: String, words: &[&str]| {
        assert!(words.iter().all(|word| error.contains(word)), "{error}, should have {words:?}");
    };
    for (scale, words) in [
        (TokenScales { address: 8 * FAR + 2, ..good }, ["cache.k_scale.address", "multiple of 4"]),
        (TokenScales { elements: 7, ..good }, ["cache.k_scale.elements: 7", "need"]),
        (TokenScales { strides: [-8, 1], ..good }, ["cache.k_scale.strides: [-8, 1]", "slot to slot"]),
        (TokenScales { strides: [8, -1], ..good }, ["cache.k_scale.strides: [8, -1]", "head to head"]),
        (TokenScales { strides: [1 << 30, 1], ..good }, ["cache.k_scale.strides", "below 2^30"]),
    ] {
        check(refused(ONE, of_keys(scale)), &words);
    }
    let without = |scale: KvScale| {
        move |mut r: AttentionRequest<'static>| {
            cache(&mut r).pages.scales[1] = scale;
            r
        }
    };
    let each = ["cache.v_scale", "a scale for each token and key head", "KvPages::int8"];
    check(refused(ONE, without(KvScale::One)), &each);
    check(refused(ONE, without(KvScale::Value(2.0))), &each);
    check(refused(Shape { head_dim: 72, ..ONE }, same), &["head_dim 72 of an int8 cache", "multiples of 16"]);
    check(refused(Shape { head_dim: 272, ..ONE }, same), &["not supported", "int8", "head_dim up to 256"]);
    let half = |mut r: AttentionRequest<'static>| {
        let pages = &mut cache(&mut r).pages;
        (pages.keys.dtype, pages.values.dtype) = (DType::F16, DType::F16);
        r
    };
    check(refused(ONE, half), &["cache.k_scale", "a KV cache of f16 has no scales per token"]);
}

/// A named kernel for another cache: the error names both dtypes.
#[test]
fn kernels_for_other_caches() {
    for (shape, name, cache) in [
        (ONE, "decode_f16_d128_causal_16_rows_w4", "f16"),
        (ONE, "decode_f16_e4m3_d128_causal_16_rows", "e4m3"),
        (PROMPT, "paged_f16_d128_causal_128x48", "f16"),
        (MIXED, "mixed_few_f16_d128_causal_16_rows_w4", "f16"),
        (MIXED, "mixed_few_f16_e4m3_d128_causal_16_rows_native", "e4m3"),
    ] {
        let error = plan(&request(shape).config(name), card("l4")).expect_err("another cache").to_string();
        let words = format!(
            "config: {name}; it is a kernel for f16 on caches of {cache}, and the request has f16 on a cache \
             of int8; name another kernel"
        );
        assert!(error.contains(&words), "{error}, should have {words}");
    }
    let bias = Bias::rows(11 * FAR, 1 << 40, DType::F16, [1, 1, 1, 4096], 4096);
    let error = refused(ONE, |r| r.bias(bias));
    let words = "no kernel for f16 and keys on a KV cache of int8 adds a bias to the scores under this mask; \
                 remove the bias, or use what has kernels: full and causal masks, windows and softcap";
    assert!(error.contains(words), "{error}");
}

/// An append of 90 tokens of 2 heads of 64 columns.
fn append(dtype: DType) -> Append {
    let [k, v] = [1, 2].map(|n| TensorView::bshd(n * FAR, 100 * 128, dtype, [1, 100, 2, 64]));
    let pages = [3, 4].map(|n| TensorView::bshd(n * FAR, 20 * 16 * 128, DType::Int8, [20, 16, 2, 64]));
    let scales = |n: u64| TokenScales::contiguous(n * FAR, 20 * 16 * 2, 2);
    Append::new(k, v, KvPages::int8(pages[0], pages[1], scales(6), scales(7)), Slots::i64(5 * FAR, 90))
}

#[test]
fn a_warp_appends_a_row() {
    for (dtype, symbol) in [(DType::F16, "append_f16_int8"), (DType::Bf16, "append_bf16_int8")] {
        let plan = plan(&append(dtype), card("a100")).expect("valid");
        assert_eq!(plan.contract().symbol, symbol);
        assert!(plan.reason().contains("a warp finds the row's scale"), "{}", plan.reason());
        // There are 180 rows, and 8 warps per block.
        assert_eq!(plan.grid(), [23, 1, 1]);
    }
}

#[test]
fn refused_appends() {
    type Change = fn(&mut Append);
    let cases: [(Change, &[&str]); 6] = [
        (|a| a.pages.scales = [KvScale::One; 2], &["cache.k_scale", "KvPages::int8"]),
        (
            |a| a.pages.scales[0] = KvScale::Tokens(TokenScales::new(6 * FAR, 1 << 20, [1, 1])),
            &["cache.k_scale.strides: [1, 1]", "TokenScales::contiguous"],
        ),
        (|a| a.pages.scales[1] = a.pages.scales[0], &["cache.v_scale must not overlap cache.k_scale"]),
        (
            |a| a.pages.scales[0] = KvScale::Tokens(TokenScales::contiguous(a.k.address, 640, 2)),
            &["cache.k_scale must not overlap k.address"],
        ),
        (|a| (a.k.dtype, a.v.dtype) = (DType::Int8, DType::Int8), &["not supported: int8 tokens"]),
        (
            |a| {
                let wide =
                    |view: TensorView, shape| TensorView::bshd(view.address, 1 << 30, view.dtype, shape);
                [a.k, a.v] = [a.k, a.v].map(|view| wide(view, [1, 100, 2, 272]));
                let Append { pages: KvPages { keys, values, .. }, .. } = a;
                [*keys, *values] = [*keys, *values].map(|view| wide(view, [20, 16, 2, 272]));
            },
            &["head_dim 272 of an append to an int8 cache", "at most 256 columns"],
        ),
    ];
    for (change, words) in cases {
        let mut request = append(DType::F16);
        change(&mut request);
        let error = plan(&request, card("l4")).expect_err("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}, should have {words:?}");
    }
}

#[test]
fn scales_are_in_the_parameters() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("l4"));
    let sent = || attention.driver().launches().last().expect("a launch").params.clone();
    let check = |params: Vec<u8>, size: usize, at: usize, [first, slot]: [u64; 2]| {
        assert_eq!(params.len(), size);
        let number = |at: usize| u64::from_ne_bytes(params[at..][..8].try_into().expect("8 bytes"));
        let scales: Vec<_> = (0..8).map(|i| number(at + 8 * i)).collect();
        assert_eq!(scales, [first * FAR, slot, 4, 0, (first + 1) * FAR, slot, 4, 0]);
    };
    let paged = offset_of!(PagedParams<[PerHead; 2]>, scales);
    let many = offset_of!(ManyParams<PagedParams<[PerHead; 2]>>, paged) + paged;
    for (shape, size, at) in [
        (ONE, size_of::<DecodeParams>(), offset_of!(DecodeParams, scales)),
        (PROMPT, size_of::<PagedParams<[PerHead; 2]>>(), paged),
        (MIXED, size_of::<ManyParams<PagedParams<[PerHead; 2]>>>(), many),
    ] {
        let request = request(shape);
        let plan = attention.plan(&request)?;
        attention.load(&plan)?;
        // SAFETY: nothing runs.
        unsafe { attention.launch(&plan, &request, &7) }?;
        check(sent(), size, at, [8, 32]);
    }
    // Blocks of 8 rows split a sequence from two shares of the device on, blocks of 16 rows from more.
    for (shape, threshold) in [(ONE, 1.99_f32), (Shape { queries: 4, ..ONE }, 2.25)] {
        let request = request(shape);
        let plan = attention.plan(&request)?;
        attention.load(&plan)?;
        // SAFETY: nothing runs.
        unsafe { attention.launch(&plan, &request, &7) }?;
        let at = offset_of!(DecodeParams, order) + offset_of!(DecodeOrder, threshold);
        assert_eq!(sent()[at..][..4], threshold.to_ne_bytes(), "{}", plan.contract().symbol);
    }
    let request = append(DType::F16);
    let plan = attention.plan(&request)?;
    attention.load(&plan)?;
    // SAFETY: nothing runs.
    unsafe { attention.launch(&plan, &request, &7) }?;
    check(sent(), size_of::<AppendParams>(), offset_of!(AppendParams, scales), [6, 8]);
    Ok(())
}
