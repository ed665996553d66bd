//! Tests the tensor maps of Hopper's kernels on paged caches, and that docs/limits.md quotes plans' reasons.

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
    varlen: true,
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

const D128: &str = "hopper_paged_bf16_d128_causal_128x128";
const PORTABLE: &str = "paged_bf16_d128_causal_128x48";

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
        problem.kv_dtype = dtype;
        plan::explain(&problem, on, Scratch::None).expect("valid").1
    };
    let reasons = [
        of_problem(2048, 256, DType::E4m3, card("h200")),
        of_problem(2048, 128, DType::Int8, card("h200")),
        of_problem(33, 128, DType::Bf16, card("h200")),
        of_problem(2048, 128, DType::Bf16, &old),
        of_tensors(|mut d| {
            repeated(&mut d);
            d
        }),
    ];
    let quoted = section.split('"').skip(1).step_by(2).map(|quoted| quoted.trim_end_matches(".."));
    let unknown: Vec<_> = quoted.clone().filter(|q| !reasons.iter().any(|r| r.starts_with(q))).collect();
    assert!(unknown.is_empty() && quoted.count() == reasons.len(), "{unknown:?}: {reasons:#?}");
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
    let launch = &launches[0];
    assert_eq!((&*launch.symbol, launch.params.len()), (D128, size_of::<HopperPagedParams>()));
    let row = 128 * 2;
    let forward = offset_of!(HopperPagedParams, forward);
    for (name, at, tensor, of, heads) in
        [("q", 0, 1, 64, 32), ("k", 128, 4, 16, 8), ("v", 256, 5, 16, 8), ("o", 384, 2, 64, 32)]
    {
        let words: [u64; 5] = std::array::from_fn(|i| word(&launch.params, forward + at + 8 * i));
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
