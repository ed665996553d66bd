//! Tests prefill and mixed batches on e4m3 KV caches: the kernels that the planner selects and their reasons,
//! the refused requests, and the scales in the parameters.
use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use crate::parts::cache;
use core::mem::{offset_of, size_of};
use ferroflash::{request::*, *};
use spec::{HopperPagedParams, ManyParams, PagedParams, PerHead};

/// 8 sequences of 512 queries on at most 4096 keys.
const DENSE: Shape = Shape {
    dtype: DType::F16,
    batch: 8,
    queries: 512,
    packed: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};
/// Varlen queries; with 1000 rows, a mixed batch.
const PACKED: Shape = Shape { packed: true, ..DENSE };

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

fn same(r: AttentionRequest<'static>) -> AttentionRequest<'static> {
    r
}

/// A causal request on a cache of e4m3, with scales.
fn request(shape: Shape) -> AttentionRequest<'static> {
    let mut r = decode(shape).mask(Mask::Causal);
    if shape.packed {
        for view in [&mut r.q, &mut r.o] {
            view.shape[1] = view.shape[1].min(1000);
        }
    }
    let pages = &mut cache(&mut r).pages;
    (pages.keys.dtype, pages.values.dtype) = (DType::E4m3, DType::E4m3);
    let per_head = KvScale::Device { address: 8 * FAR, elements: 64, strides: [8, 1] };
    *pages = pages.scales(per_head, KvScale::Value(0.5));
    r
}

const WINDOW: Mask = Mask::Window { left: Some(99), right: Some(0) };
const MANY: &str = "more than 64 rows";
const VARLEN: &str = "varlen queries";
const MIXED: &str = "the sequences of few queries";
const HOPPER: &str = "warpgroups and TMA on pages";

/// A card, a shape, the request, the kernel that the plan begins with, words of the reason.
#[rustfmt::skip]
const PLANS: &[(&str, Shape, Change, &str, &str)] = &[
    ("l4", DENSE, same, "paged_f16_e4m3_d128_causal_128x32_native", MANY),
    ("l4", DENSE, |r| r.mask(Mask::Full), "paged_f16_e4m3_d128_causal_128x32_native", MANY),
    ("l4", DENSE, |r| r.mask(WINDOW), "paged_f16_e4m3_d128_local_128x32_native", MANY),
    ("l4", DENSE, |r| r.softcap(30.0), "paged_f16_e4m3_d128_local_128x32_native", MANY),
    ("l4", DENSE, |r| r.alibi(AlibiSlopes::new(9 * FAR, 32)), "paged_f16_e4m3_d128_local_128x32_native",
        "ALiBi slopes"),
    ("l4", Shape { dtype: DType::Bf16, ..DENSE }, same, "paged_bf16_e4m3_d128_causal_128x32_native", MANY),
    ("l4", Shape { head_dim: 64, ..DENSE }, same, "paged_f16_e4m3_d64_causal_128x64_native", MANY),
    ("l4", Shape { head_dim: 80, ..DENSE }, same, "paged_f16_e4m3_d128_causal_128x32_native", MANY),
    ("l4", Shape { head_dim: 192, ..DENSE }, same, "paged_f16_e4m3_d256_local_64x32", MANY),
    ("l4", Shape { page: None, ..DENSE }, same, "paged_f16_e4m3_d128_causal_128x32_native", MANY),
    // Cards without a conversion instruction.
    ("a100", DENSE, same, "paged_f16_e4m3_d128_local_128x32", MANY),
    ("a10", Shape { head_dim: 64, dtype: DType::Bf16, ..DENSE }, same,
        "paged_bf16_e4m3_d64_local_128x64", MANY),
    ("a100", PACKED, same, "paged_f16_e4m3_d128_local_128x32", VARLEN),
    // Hopper's kernels.
    ("h200", DENSE, same, "hopper_paged_f16_e4m3_d128_causal_128x128", HOPPER),
    ("h200", DENSE, |r| r.mask(Mask::Full), "hopper_paged_f16_e4m3_d128_causal_128x128", HOPPER),
    ("h200", Shape { head_dim: 80, ..DENSE }, same, "hopper_paged_f16_e4m3_d128_causal_128x128", HOPPER),
    ("h200", Shape { dtype: DType::Bf16, head_dim: 64, ..DENSE }, same,
        "hopper_paged_bf16_e4m3_d64_causal_128x128", HOPPER),
    ("h200", Shape { page: Some(12), ..DENSE }, same, "paged_f16_e4m3_d128_causal_128x32_native", "a page"),
    ("h200", DENSE, |r| r.mask(WINDOW), "hopper_paged_f16_e4m3_d128_local_128x80", HOPPER),
    ("h200", DENSE, |r| r.softcap(30.0), "hopper_paged_f16_e4m3_d128_local_128x80", HOPPER),
    ("h200", Shape { head_dim: 64, ..DENSE }, |r| r.mask(WINDOW),
        "hopper_paged_f16_e4m3_d64_local_128x128", HOPPER),
    ("h200", Shape { head_dim: 192, ..DENSE }, same, "paged_f16_e4m3_d256_local_64x32", "an e4m3 KV cache"),
    // The same instructions do not run on Blackwell.
    ("b200", DENSE, same, "paged_f16_e4m3_d128_causal_128x32_native", MANY),
    // A sequence of many queries, and batches with sequences of few queries.
    ("l4", Shape { batch: 1, ..PACKED }, same, "paged_f16_e4m3_d128_causal_128x32_native", VARLEN),
    ("l4", PACKED, same, "mixed_few_f16_e4m3_d128_causal_16_rows_native", MIXED),
    ("h200", PACKED, same, "mixed_few_f16_e4m3_d128_causal_16_rows_native", MIXED),
    ("l4", Shape { head_dim: 48, ..PACKED }, same, "mixed_few_f16_e4m3_d64_causal_16_rows_native", MIXED),
    ("l4", PACKED, |r| r.mask(WINDOW), "paged_f16_e4m3_d128_local_128x32_native", VARLEN),
    ("l4", PACKED, |r| r.splits(Splits::CHUNK), "paged_f16_e4m3_d128_causal_128x32_native", VARLEN),
    // Few rows are decode's. Sinks in prefill are a merge kernel's.
    ("l4", Shape { queries: 4, ..DENSE }, same, "decode_f16_e4m3_d128_causal_16_rows_native", ""),
    ("l4", DENSE, |r| r.sinks(Sinks { address: 9 * FAR, elements: 32 }),
        "paged_f16_e4m3_d128_causal_128x32_native", "a merge kernel adds them"),
];

#[test]
fn plans() {
    for (name, shape, change, symbol, words) in PLANS {
        let request = change(request(*shape)).scratch(Scratch::Fastest);
        let plan = plan(&request, card(name)).unwrap_or_else(|e| panic!("{e}: {request:?}"));
        let (own, reason) = (plan.contract().symbol, plan.reason());
        let decodes = symbol.starts_with("decode") && own.starts_with("decode_f16_e4m3_d128");
        assert!(decodes || own == *symbol, "{name} {own} {request:?}");
        assert!(reason.contains(words), "{name} {request:?}: {reason}");
    }
}

/// Requests that no kernel solves, and words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(Shape, Change, &[&str])] = &[
    (Shape { head_dim: 272, ..DENSE }, same, &["not supported", "a cache of e4m3", "head_dim up to 256"]),
    (Shape { head_dim: 72, ..DENSE }, same, &["head_dim 72 of an e4m3 cache", "multiples of 16"]),
    (DENSE, |r| r.mask(Mask::Chunked { chunk: 9 }), &["not supported", "chunk"]),
    (PACKED, |r| r.sinks(Sinks { address: 9 * FAR, elements: 32 }), &["not supported", "Merge"]),
    (DENSE, |r| r.config("paged_f16_d128_causal_128x48"), &["config", "f16 on a cache of e4m3"]),
    (DENSE, |r| r.config("paged_bf16_e4m3_d128_local_128x32"), &["config", "f16 on a cache of e4m3"]),
    (PACKED, |r| r.config("mixed_few_f16_d128_causal_16_rows_w4"), &["config", "on a cache of e4m3"]),
    (DENSE, |r| r.splits(Splits::Exactly(3)), &["only decode kernels support splits"]),
];

#[test]
fn refusals() {
    for (shape, change, words) in REFUSED {
        let error = plan(&change(request(*shape)), card("l4")).expect_err("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}, should have {words:?}");
    }
    // A named kernel that the card cannot run.
    let native = request(DENSE).config("paged_f16_e4m3_d128_causal_128x32_native");
    let error = plan(&native, card("a100")).expect_err("refused").to_string();
    assert!(error.contains("not supported"), "{error}");
}

/// Both kernels of a launch get the scales of keys, per sequence and head, and of values, one number.
#[test]
fn scales_are_in_the_parameters() -> Result<(), Error> {
    with_ptx();
    let paged = offset_of!(PagedParams<[PerHead; 2]>, scales);
    let many = offset_of!(ManyParams<PagedParams<[PerHead; 2]>>, paged) + paged;
    let hopper = offset_of!(HopperPagedParams<[PerHead; 2]>, scales);
    for (name, shape, size, at) in [
        ("l4", DENSE, size_of::<PagedParams<[PerHead; 2]>>(), paged),
        ("l4", PACKED, size_of::<ManyParams<PagedParams<[PerHead; 2]>>>(), many),
        ("h200", DENSE, size_of::<HopperPagedParams<[PerHead; 2]>>(), hopper),
        ("h200", PACKED, size_of::<HopperPagedParams<[PerHead; 2]>>(), hopper),
    ] {
        let (attention, request) = (Attention::new(FakeDriver::new(name)), request(shape));
        let plan = attention.plan(&request)?;
        attention.load(&plan)?;
        // SAFETY: nothing runs.
        unsafe { attention.launch(&plan, &request, &7) }?;
        let launches = attention.driver().launches();
        let params = &launches.last().expect("a launch").params;
        assert_eq!(params.len(), size);
        let number = |at: usize| u64::from_ne_bytes(params[at..][..8].try_into().expect("8 bytes"));
        let scales: Vec<_> = (0..8).map(|i| number(at + 8 * i)).collect();
        assert_eq!(scales, [8 * FAR, 32, 4, 0, 0, 0, 0, 0.5f32.to_bits().into()]);
    }
    Ok(())
}
