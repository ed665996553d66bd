//! Tests Hopper's kernels on paged caches: when the planner selects them, which tensor maps TMA gets, and
//! which tensors TMA does not accept.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use crate::parts::cache;
use ferroflash::{request::*, *};
use spec::HopperPagedParams;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

/// The prompts of one prefill.
const PROMPTS: Shape = Shape {
    dtype: DType::Bf16,
    batch: 4,
    queries: 2048,
    packed: true,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};

/// Returns the request of a prefill, in buffers with room for other strides.
fn prefill(shape: Shape) -> AttentionRequest<'static> {
    let mut d = decode(shape).mask(Mask::Causal);
    [&mut d.q, &mut d.o].into_iter().for_each(|view| view.elements = 1 << 34);
    let KvPages { keys, values, .. } = &mut cache(&mut d).pages;
    [keys, values].into_iter().for_each(|view| view.elements = 1 << 34);
    d
}

/// Makes all heads share one head of keys and of values.
fn repeated(d: &mut AttentionRequest<'static>) {
    let KvPages { keys, values, .. } = &mut cache(d).pages;
    [keys, values].into_iter().for_each(|view| view.strides[2] = 0);
}

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

/// A card, a shape, the request, the kernel's symbol, its blocks, and words of the reason.
type Planned = (&'static str, Shape, Change, &'static str, u32, &'static str);

const D128: &str = "hopper_paged_bf16_d128_causal_128x128";
const D64: &str = "hopper_paged_bf16_d64_causal_128x128";
const PORTABLE: &str = "paged_bf16_d128_causal_128x48";
const PORTABLE_D64: &str = "paged_bf16_d64_causal_128x64";
const PAGES: &str = "TMA on pages";
const QUERIES: &str = "varlen queries";
const FEW: &str = "too few queries or keys per sequence, or too few tiles";
const SLIDING: Mask = Mask::Window { left: Some(511), right: Some(0) };
#[rustfmt::skip]
const PLANS: &[Planned] = &[
    // Each block takes two tiles, because the planner does not know the numbers of keys. With one sequence,
    // or with equal maximum lengths, blocks are persistent.
    ("h200", PROMPTS, |d| d, D128, 4 * 16 * 32 / 2, PAGES),
    ("h100", Shape { batch: 1, ..PROMPTS }, |d| d, D128, 132, PAGES),
    ("h200", PROMPTS, |mut d| { *cache(&mut d) = cache(&mut d).total_k(4 * 4096); d }, D128, 132, PAGES),
    ("h200", Shape { packed: false, ..PROMPTS }, |d| d.mask(Mask::Full), D128, 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { head_dim: 80, ..PROMPTS }, |d| d, D128, 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { head_dim: 32, ..PROMPTS }, |d| d, D64, 4 * 16 * 32 / 2,
        PAGES),
    // The cases have pages of 8 keys, pages of whole stages, and pages of any size with one page per
    // sequence.
    ("h200", Shape { page: Some(24), ..PROMPTS }, |d| d, D128, 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { page: Some(256), ..PROMPTS }, |d| d, D128, 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { page: Some(4097), ..PROMPTS }, |d| d, D128, 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { page: None, max_k: 4099, ..PROMPTS }, |d| d, D128, 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { page: Some(4), ..PROMPTS }, |d| d, PORTABLE, 4 * 16 * 32, "multiple of 8 keys"),
    ("h200", Shape { page: Some(1), ..PROMPTS }, |d| d, PORTABLE, 4 * 16 * 32, "multiple of 8 keys"),
    // In these cases, sequences are short or few, or the mask, the head dim or the card is another.
    ("h200", Shape { queries: 33, batch: 5, ..PROMPTS }, |d| d, D128, 5 * 32 / 2, PAGES),
    ("h200", Shape { queries: 33, ..PROMPTS }, |d| d, PORTABLE, 4 * 32, FEW),
    ("h200", Shape { queries: 256, max_k: 128, ..PROMPTS }, |d| d, D128, 8 * 32 / 2, PAGES),
    ("h200", Shape { queries: 256, max_k: 127, ..PROMPTS }, |d| d, PORTABLE, 8 * 32, FEW),
    ("h200", Shape { queries: 127, batch: 5, head_dim: 64, ..PROMPTS }, |d| d, PORTABLE_D64, 5 * 32, FEW),
    ("h200", Shape { queries: 256, max_k: 384, head_dim: 64, ..PROMPTS }, |d| d, D64, 8 * 32 / 2, PAGES),
    ("h200", Shape { queries: 256, max_k: 383, head_dim: 64, ..PROMPTS }, |d| d, PORTABLE_D64, 8 * 32, FEW),
    ("h200", Shape { queries: 256, max_k: 511, ..PROMPTS }, |d| d.mask(SLIDING),
        "paged_bf16_d128_local_128x32", 8 * 32, FEW),
    ("h200", Shape { batch: 1, queries: 256, ..PROMPTS }, |d| d, PORTABLE, 2 * 32, FEW),
    ("h200", PROMPTS, |d| d.mask(SLIDING), "hopper_paged_bf16_d128_local_128x96", 4 * 16 * 32 / 2, PAGES),
    ("h200", PROMPTS, |d| d.softcap(30.0), "hopper_paged_bf16_d128_local_128x96", 4 * 16 * 32 / 2, PAGES),
    ("h200", Shape { head_dim: 256, ..PROMPTS }, |d| d, "paged_bf16_d256_causal_64x32", 4 * 32 * 32,
        QUERIES),
    ("h200", PROMPTS, |d| d.alibi(AlibiSlopes::new(8 * FAR, 32)), "paged_bf16_d128_local_128x32", 4 * 16 * 32,
        QUERIES),
    ("a100", PROMPTS, |d| d, PORTABLE, 4 * 16 * 32, QUERIES),
    ("a100", Shape { queries: 127, ..PROMPTS }, |d| d, PORTABLE, 4 * 32, QUERIES),
    ("b200", PROMPTS, |d| d, PORTABLE, 4 * 16 * 32, QUERIES),
    // The cases have batch-invariant splits, or tensors that TMA does not accept.
    ("h200", PROMPTS, |d| d.splits(Splits::CHUNK), PORTABLE, 4 * 16 * 32, "batch-invariant splits"),
    ("h200", PROMPTS, |mut d| {
        repeated(&mut d);
        d
    }, PORTABLE, 4 * 16 * 32, "a stride is 0"),
    ("h200", Shape { packed: false, ..PROMPTS }, |mut d| { d.q.strides[0] += 8; d }, PORTABLE, 4 * 16 * 32,
        "batches are not contiguous"),
    ("h200", PROMPTS, |mut d| {
        cache(&mut d).pages.keys.strides[0] += 8;
        cache(&mut d).pages.values.strides[0] += 8;
        d
    }, PORTABLE, 4 * 16 * 32, "a whole number of rows apart"),
    // The caller names the kernel.
    ("h200", Shape { batch: 1, queries: 5, ..PROMPTS }, |d| d.config(D128), D128, 32, "names this kernel"),
    ("h200", PROMPTS, |d| d.config(PORTABLE), PORTABLE, 4 * 16 * 32, "names this kernel"),
];

#[test]
fn plans() {
    for (name, shape, change, symbol, blocks, reason) in PLANS {
        let request = change(prefill(*shape));
        let plan = plan(&request, card(name)).unwrap_or_else(|e| panic!("{e}: {request:?}"));
        assert_eq!((plan.contract().symbol, plan.grid()), (*symbol, [*blocks, 1, 1]), "{name} {request:?}");
        assert!(plan.reason().contains(reason), "{name} {request:?}: {}", plan.reason());
    }
}

/// Checks that every text which docs/limits.md quotes begins the reason of a plan.
#[test]
fn the_document_quotes_reasons() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/limits.md");
    let document = std::fs::read_to_string(document).expect("a document");
    let section = document.split("### What `Plan::reason` says").nth(1).expect("a section");
    let section = section.split("\n### ").next().expect("lines");
    let mut old = card("h200").clone();
    old.tensor_maps = false;
    let of_tensors = |change: Change| plan(&change(prefill(PROMPTS)), card("h200")).expect("valid").reason();
    let of_problem = |queries, head_dim, dtype, on| {
        let mut problem = prefill(Shape { queries, head_dim, ..PROMPTS }).problem();
        problem.cache.as_mut().expect("a cache").dtype = dtype;
        plan::explain(&problem, on, Scratch::None).expect("valid").1
    };
    let reasons = [
        of_problem(2048, 256, DType::E4m3, card("h200")),
        of_problem(2048, 128, DType::Int8, card("h200")),
        of_problem(33, 128, DType::Bf16, card("h200")),
        of_problem(2048, 128, DType::Bf16, &old),
        of_tensors(|d| d.splits(Splits::CHUNK)),
        of_tensors(|mut d| {
            repeated(&mut d);
            d
        }),
    ];
    let quoted = section.split('"').skip(1).step_by(2).map(|quoted| quoted.trim_end_matches(".."));
    let unknown: Vec<_> = quoted.clone().filter(|q| !reasons.iter().any(|r| r.starts_with(q))).collect();
    assert!(unknown.is_empty() && quoted.count() == reasons.len(), "{unknown:?}: {reasons:#?}");
}

/// Invalid combinations with the kernel's name, and words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(&str, Shape, Change, &[&str])] = &[
    ("h200", Shape { page: Some(4), ..PROMPTS }, |d| d, &[D128, "multiple of 8 keys"]),
    ("h200", PROMPTS, |mut d| { (d.q.dtype, d.o.dtype) = (DType::F16, DType::F16);
        cache(&mut d).pages.keys.dtype = DType::F16;
        cache(&mut d).pages.values.dtype = DType::F16; d },
        &["config", D128]),
    ("h200", PROMPTS, |d| d.mask(SLIDING), &["config", D128, "mask"]),
    ("h200", PROMPTS, |d| d.alibi(AlibiSlopes::new(8 * FAR, 32)), &["config", D128]),
    ("h200", Shape { head_dim: 256, ..PROMPTS }, |d| d, &["config", D128, "head_dim 256"]),
    ("a100", PROMPTS, |d| d, &[D128, "exactly sm_90a"]),
];

#[test]
fn who_names_the_kernel_is_told() {
    for (name, shape, change, words) in REFUSED {
        let error = plan(&change(prefill(*shape)).config(D128), card(name)).expect_err("refused");
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}, should have {words:?}");
    }
    let mut old = card("h200").clone();
    old.tensor_maps = false;
    let plan = plan(&prefill(PROMPTS), &old).expect("valid");
    assert!(plan.contract().symbol == PORTABLE && plan.reason().contains("CUDA 12.3"), "{plan:?}");
}

/// Reads a 64-bit word of a kernel's parameters.
fn word(params: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(params[at..][..8].try_into().expect("8 bytes"))
}

#[test]
fn maps_follow_from_tensors_and_pages_alone() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let encoded = || attention.driver().maps.swap(0, Ordering::Relaxed);
    let d = prefill(PROMPTS);
    let plan = attention.plan(&d)?;
    assert_eq!((plan.contract().symbol, encoded()), (D128, 0), "planning encodes nothing");
    attention.load(&plan)?;
    assert_eq!(attention.driver().loaded(), [D128, PORTABLE]);
    let launch = |d: &AttentionRequest<'_>| {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, d, &7) }
    };
    launch(&d)?;
    // The launch has other sequences, and other pages of the same cache.
    let mut others = d;
    cache(&mut others).lengths.address += 64;
    if let Paged::Table { entries, .. } = &mut cache(&mut others).paged {
        entries.address += 64;
    }
    launch(&others)?;
    assert_eq!(encoded(), 4, "the second launch finds them");
    let launches = attention.driver().launches();
    let told = &launches[0];
    assert_eq!((&*told.symbol, told.params.len()), (D128, size_of::<HopperPagedParams>()));
    let row = 128 * 2;
    let forward = offset_of!(HopperPagedParams, forward);
    for (name, at, tensor, of, heads) in
        [("q", 0, 1, 64, 32), ("k", 128, 4, 16, 8), ("v", 256, 5, 16, 8), ("o", 384, 2, 64, 32)]
    {
        let words: [u64; 5] = std::array::from_fn(|i| word(&told.params, forward + at + 8 * i));
        assert_eq!(words, [tensor * FAR, 64, of, heads * row, row], "{name}");
    }
    let of = |launch: usize, at| word(&launches[launch].params, at);
    let (lengths, table) =
        (offset_of!(HopperPagedParams, lengths), offset_of!(HopperPagedParams, cache) + 16);
    assert_eq!([of(0, lengths), of(0, table)], [3 * FAR, 6 * FAR]);
    assert_eq!([of(1, lengths), of(1, table)], [3 * FAR + 64, 6 * FAR + 64]);
    assert_eq!(of(0, offset_of!(HopperPagedParams, boxes)), 16 << 32 | 16, "pages of 16 rows, 16 apart");
    Ok(())
}

#[test]
fn another_problem_is_named() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let d = prefill(PROMPTS);
    let plan = attention.plan(&d)?;
    // The request states the default scale explicitly. SAFETY: the fake driver runs nothing.
    unsafe { attention.launch(&plan, &d.scale(1.0 / 128f32.sqrt()), &0)? };
    let mut longer = d;
    cache(&mut longer).max_k -= 1;
    for (other, expected) in [
        (longer, ["invalid cache.max_k: ", "the plan is for "]),
        (d.softcap(3.0), ["invalid softcap: 3", "the plan is for none"]),
        (d.splits(Splits::CHUNK), ["invalid splits: Chunk(1024)", "the plan is for Auto"]),
    ] {
        // SAFETY: the fake driver runs nothing.
        let refused = unsafe { attention.launch(&plan, &other, &0) }.expect_err("another").to_string();
        assert!(expected.iter().all(|words| refused.contains(words)), "{refused}");
    }
    Ok(())
}

#[test]
fn other_tensors_of_a_plan_may_be_any() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let d = prefill(PROMPTS);
    let (plan, mut repeats) = (attention.plan(&d)?, d);
    repeated(&mut repeats);
    // SAFETY: the fake driver runs nothing.
    unsafe { attention.launch(&plan, &repeats, &0)? };
    let launches = attention.driver().launches();
    let portable = attention.plan(&repeats)?;
    let told = &launches[0];
    assert_eq!((&*told.symbol, told.grid), (portable.contract().symbol, portable.grid()));
    let bound = plan.bind(&repeats)?;
    assert_eq!((bound.contract(), bound.reason()), (portable.contract(), portable.reason()));
    assert!(bound.reason().contains("a stride is 0"), "{}", bound.reason());
    // If the caller named the kernel, the launch is refused.
    let asked = attention.plan(&d.config(D128))?;
    // SAFETY: the fake driver runs nothing.
    let refused = unsafe { attention.launch(&asked, &repeats, &0) }.expect_err("a stride of 0").to_string();
    assert!(refused.contains(D128) && refused.contains("a stride is 0"), "{refused}");
    Ok(())
}
