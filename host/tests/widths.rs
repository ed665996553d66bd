//! Tests values of another number of columns than keys (`head_dim_v`): the planner's choices, and requests
//! that it refuses.

use crate::on_cache::{FAR, Shape, card, decode};
use crate::parts::v;
use ferroflash::{plan::*, request::*, *};

/// Returns a dense request of bf16 tensors: `heads` heads of `lengths` queries and keys.
fn dense(heads: usize, lengths: [usize; 2], columns: [usize; 2]) -> AttentionRequest<'static> {
    let view =
        |n: u64, rows, columns| TensorView::bshd(n * FAR, 1 << 38, DType::Bf16, [1, rows, heads, columns]);
    let ([rows, keys], [k, v]) = (lengths, columns);
    AttentionRequest::dense(view(1, rows, k), view(2, keys, k), view(3, keys, v), view(4, rows, v))
}

/// `card, heads, [queries, keys], columns of K and of V, mask -> kernel`.
type Case = (&'static str, usize, [usize; 2], [usize; 2], Mask, &'static str);

const CAUSAL: Mask = Mask::Causal;
const WINDOW: Mask = Mask::Window { left: Some(100), right: Some(0) };

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("h200", 128, [4096, 4096], [192, 128], CAUSAL, "hopper_bf16_d192x128_causal_128x128"),
    ("h200", 128, [4096, 4096], [176, 120], Mask::Full, "hopper_bf16_d192x128_full_128x128"),
    ("h200", 128, [512, 512], [192, 128], CAUSAL, "hopper_bf16_d192x128_causal_128x128"),
    // Few tiles, masks without a Hopper kernel, and other cards.
    ("h200", 4, [100, 100], [192, 128], CAUSAL, "fwd_bf16_d192x128_causal_64x48"),
    // Hopper's kernels take any pair. A window has a kernel of equal columns alone.
    ("h200", 128, [4096, 4096], [192, 128], WINDOW, "hopper_bf16_d192_local_128x96"),
    ("h200", 128, [4096, 4096], [128, 64], CAUSAL, "hopper_bf16_d128_causal_128x128"),
    ("h200", 128, [4096, 4096], [64, 128], CAUSAL, "hopper_bf16_d128_causal_128x128"),
    ("h200", 128, [4096, 4096], [256, 128], CAUSAL, "hopper_bf16_d256_causal_128x64"),
    ("h200", 4, [100, 100], [24, 16], Mask::Full, "fwd_bf16_d192x128_full_64x48"),
    ("b200", 128, [4096, 4096], [192, 128], CAUSAL, "fwd_bf16_d192x128_causal_128x48"),
    ("a100", 128, [4096, 4096], [192, 128], CAUSAL, "fwd_bf16_d192x128_causal_128x48"),
    ("a100", 4, [100, 100], [192, 128], CAUSAL, "fwd_bf16_d192x128_causal_64x48"),
    ("l4", 128, [4096, 4096], [192, 128], Mask::Full, "fwd_bf16_d192x128_full_64x48"),
    ("l4", 128, [4096, 4096], [192, 128], WINDOW, "fwd_bf16_d192x128_local_64x32"),
    // Other pairs run on the next larger kernel. Single queries have no decode kernel.
    ("a100", 128, [4096, 4096], [192, 64], CAUSAL, "fwd_bf16_d192x128_causal_128x48"),
    ("l4", 8, [300, 300], [64, 128], CAUSAL, "fwd_bf16_d192x128_causal_64x48"),
    ("l4", 8, [300, 300], [128, 8], Mask::Full, "fwd_bf16_d192x128_full_64x48"),
    ("l4", 8, [1, 4096], [192, 128], Mask::Full, "fwd_bf16_d192x128_full_64x48"),
    // Above 192 and 128 columns, the general kernel takes every mask.
    ("a100", 128, [4096, 4096], [256, 128], CAUSAL, "fwd_bf16_d256_local_64x32"),
    ("l4", 8, [300, 300], [128, 256], Mask::Full, "fwd_bf16_d256_local_64x32"),
    ("l4", 8, [300, 300], [192, 136], WINDOW, "fwd_bf16_d256_local_64x32"),
    // Equal numbers of columns keep their kernels.
    ("a100", 128, [4096, 4096], [128, 128], CAUSAL, "fwd_bf16_d128_causal_128x48"),
    ("l4", 128, [4096, 4096], [192, 192], Mask::Full, "fwd_bf16_d192_full_64x32"),
];

#[test]
fn the_planner_chooses() {
    for (name, heads, lengths, columns, mask, kernel) in CASES {
        let (f, case) = (dense(*heads, *lengths, *columns).mask(*mask), format!("{name} {columns:?} {mask}"));
        let made = plan(&f, card(name)).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(made.contract().symbol, *kernel, "{case}");
        assert_eq!(supports(&f.problem(), card(name)), Ok(made.contract()), "{case}");
    }
}

/// The planner also selects kernels of two widths for varlen sequences of 1024 queries and keys.
#[test]
fn varlen_sequences_too() {
    for (name, columns, mask, kernel) in [
        ("h200", [192, 128], CAUSAL, "hopper_packed_bf16_d192x128_causal_128x128"),
        ("h200", [256, 128], CAUSAL, "hopper_packed_bf16_d256_causal_128x64"),
        ("a100", [192, 128], Mask::Full, "fwd_bf16_d192x128_full_128x48_packed"),
        ("a100", [256, 128], Mask::Full, "fwd_bf16_d256_local_64x32_packed"),
        ("l4", [192, 128], CAUSAL, "fwd_bf16_d192x128_causal_64x48_packed"),
        ("l4", [192, 128], WINDOW, "fwd_bf16_d192x128_local_64x32_packed"),
    ] {
        let f = dense(32, [4096, 4096], columns).mask(mask);
        let Some([k, v]) = f.kv.tensors() else { panic!("tensors") };
        let starts = |n: u64| Index::new(n * FAR, 5);
        let queries = VarlenQueries::new(4, starts(8), 1024);
        let varlen = AttentionRequest::varlen(f.q, *k, *v, f.o, queries, VarlenKeys::new(starts(9), 1024));
        let made = plan(&varlen.mask(mask), card(name)).unwrap_or_else(|e| panic!("{name} {mask}: {e}"));
        assert_eq!(made.contract().symbol, kernel);
    }
}

/// Returns a request on a KV cache of 8 sequences, 16 query heads and 2 key heads, with these columns of keys
/// and of values.
fn cached(queries: usize, columns: [usize; 2]) -> AttentionRequest<'static> {
    let shape = Shape {
        dtype: DType::F16,
        batch: 8,
        queries,
        packed: false,
        heads: [16, 2],
        head_dim: columns[0],
        page: Some(16),
        max_k: 2048,
    };
    let mut f = decode(shape).mask(Mask::Causal);
    let KeysValues::Cache(cache) = &mut f.kv else { panic!("a cache") };
    cache.pages.values.shape[3] = columns[1];
    (cache.pages.values.address, cache.pages.values.elements) = (12 * FAR, 1 << 38);
    f.o = TensorView::bshd(2 * FAR, 1 << 38, DType::F16, [8, queries, 16, columns[1]]);
    f
}

/// Card, queries, columns of K and of V, whether values have rows of their own length, the kernel, and words
/// of the reason.
type CachedCase = (&'static str, usize, [usize; 2], bool, &'static str, &'static str);

#[rustfmt::skip]
const CACHED: &[CachedCase] = &[
    ("l4", 100, [192, 128], false, "paged_f16_d192x128_causal_64x48", "more than 64 rows"),
    ("l4", 100, [192, 128], true, "paged_f16_d192x128_causal_64x48", "more than 64 rows"),
    ("l4", 1, [192, 128], true, "paged_f16_d192x128_causal_64x48", "which decode kernels lack"),
    ("l4", 1, [136, 128], false, "paged_f16_d192x128_causal_64x48", "which decode kernels lack"),
    ("l4", 1, [192, 64], true, "paged_f16_d192x128_causal_64x48", "which decode kernels lack"),
    ("l4", 1, [64, 128], true, "paged_f16_d192x128_causal_64x48", "which decode kernels lack"),
    ("l4", 100, [256, 128], true, "paged_f16_d256_local_64x32", "more than 64 rows"),
    ("l4", 100, [64, 256], true, "paged_f16_d256_local_64x32", "more than 64 rows"),
    ("h200", 1500, [192, 128], true, "hopper_paged_f16_d192x128_causal_128x128", "on pages"),
    ("h200", 1500, [192, 128], false, "hopper_paged_f16_d192x128_causal_128x128", "on pages"),
    ("h200", 1500, [128, 64], true, "hopper_paged_f16_d128_causal_128x128", "on pages"),
    ("h200", 1500, [200, 64], true, "paged_f16_d256_local_64x32", "more than 64 rows"),
];

/// Values in a cache may have fewer columns in rows as long as the keys', or rows of their own length.
#[test]
fn caches_whose_values_have_their_own_columns() {
    for (name, queries, columns, own, kernel, words) in CACHED {
        let f = if *own { with_own_rows(cached(*queries, *columns)) } else { cached(*queries, *columns) };
        let made = plan(&f, card(name)).unwrap_or_else(|e| panic!("{name} {columns:?}: {e}"));
        assert_eq!(made.contract().symbol, *kernel, "{columns:?}");
        assert!(made.reason().contains(words), "{}", made.reason());
    }
}

/// Returns a request whose values are contiguous `[pages, page, heads, columns]`.
fn with_own_rows(mut f: AttentionRequest<'static>) -> AttentionRequest<'static> {
    let KeysValues::Cache(cache) = &mut f.kv else { panic!("a cache") };
    let TensorView { address, elements, dtype, shape, .. } = cache.pages.values;
    cache.pages.values = TensorView::bshd(address, elements, dtype, shape);
    f
}

/// Keys and values of equal numbers of columns in different strides run on the kernel of two widths. A plan
/// does not bind a cache of other strides.
#[test]
fn caches_of_two_strides() {
    let equal = cached(100, [128, 128]);
    let mut apart = equal;
    let KeysValues::Cache(cache) = &mut apart.kv else { panic!("a cache") };
    let KvPages { keys, values, .. } = &mut cache.pages;
    *values = TensorView::bhsd(values.address, values.elements, values.dtype, keys.shape);
    let [planned, other] = [equal, apart].map(|f| plan(&f, card("l4")).expect("valid"));
    assert_eq!(planned.contract().symbol, "paged_f16_d128_causal_128x48");
    assert_eq!(other.contract().symbol, "paged_f16_d192x128_causal_64x48");
    let error = planned.bind(&apart).expect_err("other strides").to_string();
    assert!(error.contains("cache.values.strides: of their own"), "{error}");
    // Hopper's maps number the rows of pages: those of values must be as far apart as those of keys.
    let on_hopper = plan(&cached(1500, [128, 128]), card("h200")).expect("valid");
    assert_eq!(on_hopper.contract().symbol, "hopper_paged_f16_d128_causal_128x128");
    let padded = with_own_rows(cached(1500, [192, 128]));
    let mut sparse = padded;
    let KeysValues::Cache(cache) = &mut sparse.kv else { panic!("a cache") };
    cache.pages.values.strides[0] *= 2;
    for (f, words) in [(padded, "on pages"), (sparse, "different numbers of rows apart")] {
        let made = plan(&f, card("h200")).expect("valid");
        assert!(made.reason().contains(words), "{}", made.reason());
    }
}

/// The decode kernel of a mixed batch takes equal rows alone, so a prefill kernel takes all sequences.
#[test]
fn varlen_queries_on_values_of_their_own_columns() {
    for (columns, kernel) in
        [([128, 128], "mixed_few_f16_d128_causal_16_rows_w4"), ([128, 64], "paged_f16_d192x128_causal_64x48")]
    {
        let mut f = with_own_rows(cached(64, columns));
        let flat = |view: TensorView| {
            let [batch, queries, heads, columns] = view.shape;
            TensorView::bshd(view.address, view.elements, DType::F16, [1, batch * queries, heads, columns])
        };
        (f.q, f.o) = (flat(f.q), flat(f.o));
        f.queries = Queries::Varlen(VarlenQueries::new(8, Index::new(13 * FAR, 9), 500));
        assert_eq!(plan(&f, card("l4")).expect("valid").contract().symbol, kernel);
    }
}

/// An append writes keys and values of equal rows. Rows of two widths take one append each.
#[test]
fn appends_to_a_cache_of_two_widths() {
    let f = with_own_rows(cached(1, [192, 128]));
    let KeysValues::Cache(cache) = f.kv else { panic!("a cache") };
    let [k, v] =
        [192, 128].map(|columns| TensorView::bshd(14 * FAR, 1 << 38, DType::F16, [1, 8, 2, columns]));
    let slots = Slots::i64(15 * FAR, 8);
    let error = plan(&Append::new(k, v, cache.pages, slots), card("l4")).expect_err("two widths").to_string();
    assert!(error.contains("v.shape"), "{error}");
    assert!(error.contains("Append::latent(v, KvPages::latent(values, 8), slots)"), "{error}");
    for (rows, into) in [(k, cache.pages.keys), (v, cache.pages.values)] {
        let append = Append::latent(rows, KvPages::latent(into, 8), slots);
        assert_eq!(plan(&append, card("l4")).expect("valid").contract().symbol, "append_copy");
    }
}

#[test]
fn caches_without_a_kernel() {
    let wide = |columns| with_own_rows(cached(100, columns));
    let mut eight = wide([128, 64]);
    let KeysValues::Cache(cache) = &mut eight.kv else { panic!("a cache") };
    (cache.pages.keys.dtype, cache.pages.values.dtype) = (DType::E4m3, DType::E4m3);
    for (f, words) in [
        (wide([264, 64]), ["head_dim 264/64", "at most 256 columns of k and 256 of v"]),
        (wide([64, 264]), ["head_dim 64/264", "at most 256 columns of k and 256 of v"]),
        (eight, ["head_dim 128/64", "no kernel for this dtype of the KV cache"]),
    ] {
        let error = plan(&f, card("l4")).map(|plan| plan.contract().symbol).expect_err(words[0]).to_string();
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
}

const BIAS: Bias = Bias::rows(8 * FAR, 1 << 38, DType::Bf16, [1, 4, 300, 300], 304);

#[test]
fn a_plan_is_for_its_columns() {
    let planned = plan(&dense(4, [300, 300], [192, 128]), card("l4")).expect("valid");
    let error = planned.bind(&dense(4, [300, 300], [192, 64])).expect_err("other values").to_string();
    assert!(error.contains("head_dim_v: 64") && error.contains("the plan is for 128"), "{error}");
}

/// The change that makes the fault, and words of the error.
type Fault = (fn(&mut AttentionRequest<'static>), &'static [&'static str]);

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    (|f| v(f).shape[3] = 0, &["head_dim_v: 0", "1 or more"]),
    (|f| v(f).shape[3] = 100, &["head_dim_v 100", "multiples of 8 up to 512"]),
    (|f| v(f).shape[3] = 520, &["head_dim_v 520", "multiples of 8 up to 512"]),
    (|f| v(f).shape[3] = 136, &["o.shape: [1, 300, 4, 128]", "[1, 300, 4, 136]"]),
    (|f| f.o.shape[3] = 192, &["o.shape: [1, 300, 4, 192]", "[1, 300, 4, 128]"]),
    (|f| v(f).shape[2] = 2, &["v.shape: [1, 300, 2, 128]", "[1, 300, 4, 128]"]),
    (|f| *f = dense(4, [300, 300], [192, 192]), &[]),
    (|f| *f = dense(4, [300, 300], [256, 136]), &[]),
    (|f| *f = dense(4, [300, 300], [264, 8]), &["head_dim 264/8", "at most 256 columns of k and 256 of v"]),
    (|f| *f = dense(4, [300, 300], [8, 264]), &["head_dim 8/264", "at most 256 columns of k and 256 of v"]),
    (|f| f.scores.bias = Some(BIAS), &["equal numbers of columns"]),
    (|f| f.mask = Mask::Prefix(Prefix::All(7)), &["equal numbers of columns"]),
    (|f| f.scores.sinks = Some(Sinks { address: 9 * FAR, elements: 4 }), &["workspace"]),
    (|f| f.config = Some("fwd_bf16_d192_causal_64x32"), &["config", "head_dim 192/128"]),
    (|f| f.config = Some("fwd_bf16_d192x128_causal_64x48"), &[]),
];

#[test]
fn errors_name_the_field() {
    for (change, words) in FAULTS {
        let mut f = dense(4, [300, 300], [192, 128]).mask(Mask::Causal);
        change(&mut f);
        match plan(&f, card("l4")) {
            Ok(_) => assert!(words.is_empty(), "{words:?}: planned"),
            Err(error) => {
                let error = error.to_string();
                let says = !words.is_empty() && words.iter().all(|words| error.contains(words));
                assert!(says, "{words:?}: {error}");
            }
        }
    }
}
