//! Tests MLA decode on latent caches: the planner's choices on each card, the refused requests, and the
//! launch of an append to such a cache.
use ferroflash::{plan::*, request::*, *};

/// Distance of the buffers, so that no two of them overlap by accident.
const FAR: u64 = 1 << 44;

fn card(name: &str) -> &'static Capabilities {
    Capabilities::profile(name).expect("a known card")
}

/// Numbers of columns of keys and of values.
const DEEPSEEK: [usize; 2] = [576, 512];

/// Returns a request with `batch` sequences of up to 8192 keys in pages of 64, with these numbers of queries
/// and heads.
fn decode(
    dtype: DType,
    [batch, queries, heads]: [usize; 3],
    [head_dim, columns]: [usize; 2],
) -> AttentionRequest<'static> {
    let view = |n: u64, width: usize| {
        let shape = [batch, queries, heads, width];
        TensorView::bshd(n * FAR, shape.iter().product::<usize>() as u64, dtype, shape)
    };
    let rows = TensorView::bshd(4 * FAR, (1000 * 64 * head_dim) as u64, dtype, [1000, 64, 1, head_dim]);
    let (table, lengths) = (Index::new(6 * FAR, batch as u64 * 128), Index::new(3 * FAR, batch as u64));
    let cache = KvCache::paged(KvPages::latent(rows, columns), table, 128, lengths);
    let request = AttentionRequest::cached(view(1, head_dim), cache, view(2, columns));
    request.mask(Mask::Causal).scale(0.07).scratch(Scratch::Fastest)
}

/// A card, and the numbers of sequences, queries and heads; then the entry, its number of blocks, and its
/// bytes of workspace.
type Planned = (&'static str, [usize; 3], &'static str, u32, u64);

/// Returns the number of bytes of `slots` places in f32. Each place has `rows` rows, and each row has 512
/// columns and an LSE.
const fn places(slots: u64, rows: u64) -> u64 {
    slots * rows * 513 * 4
}

#[rustfmt::skip]
const PLANS: &[Planned] = &[
    // 16 heads fill one block of 16 rows. An L4 and an A10 hold two stages, an A100 and an H200 hold four. On
    // an H200, two blocks of two stages share an SM if several sequences are split. Blocks of eight warps
    // take 64 to 512 keys per SM.
    ("h200", [1, 1, 16], "mla_f16_d576_causal_16x32_s4", 64, places(64, 16)),
    ("h200", [2, 1, 16], "mla_f16_d576_causal_32x32", 128, places(128, 16)),
    ("h200", [7, 1, 16], "mla_f16_d576_causal_32x32", 132, places(132, 16)),
    ("h200", [8, 1, 16], "mla_f16_d576_causal_32x32", 132, places(132, 16)),
    ("h200", [9, 1, 16], "mla_f16_d576_causal_16x32", 264, places(264, 16)),
    ("h200", [33, 1, 16], "mla_f16_d576_causal_16x32", 264, places(264, 16)),
    ("h200", [34, 1, 16], "mla_f16_d576_causal_16x32_s4", 132, places(132, 16)),
    ("a100", [8, 1, 16], "mla_f16_d576_causal_16x32_s4", 108, places(108, 16)),
    ("l4", [8, 1, 16], "mla_f16_d576_causal_16x32", 58, places(58, 16)),
    ("a10", [8, 1, 16], "mla_f16_d576_causal_16x32", 72, places(72, 16)),
    // The 32 rows are heads or queries.
    ("h200", [8, 1, 32], "mla_f16_d576_causal_32x32_s4", 132, places(132, 32)),
    ("a100", [8, 2, 16], "mla_f16_d576_causal_32x32_s4", 108, places(108, 32)),
    ("l4", [8, 1, 32], "mla_f16_d576_causal_32x32", 58, places(58, 32)),
    // More than 32 rows run in blocks of 64 rows if shared memory allows, otherwise in blocks of 32.
    ("h200", [8, 1, 33], "hopper_mla_f16_d576_causal_64x64", 132, places(132, 33)),
    ("h200", [8, 1, 64], "hopper_mla_f16_d576_causal_64x64", 132, places(132, 64)),
    ("a100", [8, 1, 64], "mla_f16_d576_causal_32x32_s4", 108, places(54, 64)),
    ("h200", [8, 1, 128], "hopper_mla_f16_d576_causal_64x64", 132, places(66, 128)),
    ("l4", [8, 1, 128], "mla_f16_d576_causal_32x32", 56, places(14, 128)),
    // The rows of 4 queries of 128 heads fill 8 blocks of 64 rows.
    ("h200", [2, 4, 128], "hopper_mla_f16_d576_causal_64x64", 128, places(16, 512)),
];

#[test]
fn the_planner_takes_the_fewest_blocks_of_rows_that_the_card_holds() {
    for (name, sizes, symbol, blocks, workspace) in PLANS {
        let planned = plan(&decode(DType::F16, *sizes, DEEPSEEK), card(name));
        let planned = planned.unwrap_or_else(|error| panic!("{name} {sizes:?}: {error}"));
        let scratch = planned.scratch_bytes();
        assert_eq!(planned.contract().symbol, *symbol, "{name} {sizes:?}");
        let got = (planned.grid()[0], [scratch.workspace, scratch.counters]);
        // A combine kernel merges the splits, without counters.
        assert_eq!(got, (*blocks, [*workspace, 0]), "{name} {sizes:?}");
        assert!(planned.reason().contains("latent"), "{}", planned.reason());
        let is_short = *symbol == "mla_f16_d576_causal_32x32" && sizes[1] * sizes[2] <= 16;
        assert_eq!(planned.reason().contains("eight warps"), is_short, "{}", planned.reason());
    }
}

#[test]
fn without_a_workspace_there_are_no_short_splits() {
    for scratch in [Scratch::None, Scratch::Fastest] {
        let planned = plan(&decode(DType::F16, [4, 1, 16], DEEPSEEK).scratch(scratch), card("h100"));
        let planned = planned.expect("valid");
        let (symbol, bytes) = match scratch {
            Scratch::None => ("mla_f16_d576_causal_16x32_s4", 0),
            _ => ("mla_f16_d576_causal_32x32", places(132, 16)),
        };
        assert_eq!((planned.contract().symbol, planned.scratch_bytes().workspace), (symbol, bytes));
    }
}

#[test]
fn widths_in_between_and_every_batch_take_the_same_kernel() {
    let on = card("h200");
    for widths in [[288, 256], [576, 8], [16, 8], [520, 512]] {
        let planned = plan(&decode(DType::Bf16, [3, 1, 16], widths), on).expect("valid");
        assert_eq!(planned.contract().symbol, "mla_bf16_d576_causal_32x32", "{widths:?}");
        assert_eq!(planned.problem().head_dim, widths[0]);
    }
    for batch in [1, 7, 64, 1000] {
        let chunks = decode(DType::F16, [batch, 1, 48], DEEPSEEK).splits(Splits::Chunk(256));
        assert_eq!(plan(&chunks, on).expect("valid").contract().symbol, "mla_f16_d576_causal_64x32_s4");
    }
    // If keys are their own values, with equal numbers of columns, the cache is not a latent cache. Decode
    // kernels read the keys twice.
    let mut equal = decode(DType::F16, [3, 1, 16], [512, 512]);
    equal.scores.scale = None;
    assert_eq!(plan(&equal, on).expect("valid").contract().symbol, "decode_f16_d512_local_8_rows");
}

#[test]
fn pages_that_tma_does_not_take_keep_the_portable_kernel() {
    let on = card("h200");
    let paged = |page: usize| {
        let mut request = decode(DType::Bf16, [8, 1, 128], DEEPSEEK);
        let rows = TensorView::bshd(4 * FAR, 1 << 26, DType::Bf16, [1000, page, 1, 576]);
        let columns = 8192 / page;
        let (table, lengths) = (Index::new(6 * FAR, 8 * columns as u64), Index::new(3 * FAR, 8));
        *cache(&mut request) = KvCache::paged(KvPages::latent(rows, 512), table, columns, lengths);
        request
    };
    for (page, symbol) in [(1, "mla_bf16"), (3, "mla_bf16"), (8, "hopper_mla_bf16"), (16, "hopper_mla_bf16")]
    {
        let planned = plan(&paged(page), on).expect("valid");
        let chosen = planned.contract().symbol;
        assert!(chosen.starts_with(symbol), "pages of {page}: {chosen}");
        assert_eq!(planned.reason().contains("8 keys"), page % 8 > 0, "{}", planned.reason());
    }
    // A plan binds a request whose pages do not lie whole rows apart. The portable kernel then runs.
    let mut apart = paged(64).scratch(Scratch::None);
    let planned = plan(&apart, on).expect("valid");
    cache(&mut apart).pages.keys.strides[0] += 8;
    cache(&mut apart).pages.values.strides[0] += 8;
    let bound = planned.bind(&apart).expect("another kernel");
    assert!(bound.contract().symbol.starts_with("mla_bf16"), "{}", bound.contract().symbol);
    // Without tensor maps, and with chunks, the portable kernel runs too.
    let mut old = on.clone();
    old.tensor_maps = false;
    let chunks = paged(64).splits(Splits::Chunk(256));
    for planned in [plan(&paged(64), &old), plan(&chunks, on)] {
        let chosen = planned.expect("valid").contract().symbol;
        assert!(chosen.starts_with("mla_bf16"), "{chosen}");
    }
}

#[test]
fn a_kernel_can_be_named_and_another_kind_is_refused() {
    let request = decode(DType::F16, [8, 1, 16], DEEPSEEK);
    let named = plan(&request.config("mla_f16_d576_causal_32x32"), card("a100")).expect("valid");
    assert_eq!(named.contract().symbol, "mla_f16_d576_causal_32x32");
    for other in ["decode_f16_d512_local_8_rows", "mla_bf16_d576_causal_16x32", "paged_f16_d512_causal_64x32"]
    {
        let error = plan(&request.config(other), card("h200")).expect_err(other);
        let error = said(&error);
        assert!(error.starts_with("config") && error.contains("--family mla"), "{error}");
    }
    let error = plan(&request.config("mla_f16_d576_causal_64x32_s4"), card("a100")).expect_err("too large");
    assert!(error.to_string().contains("target: from sm_90"), "{error}");
}

/// Returns an error's text without the words with which all errors begin.
fn said(error: &Error) -> String {
    let text = error.to_string();
    let said = text.strip_prefix("invalid ").or_else(|| text.strip_prefix("not supported: "));
    said.unwrap_or(&text).to_owned()
}

/// A change that makes a valid request invalid, and the beginning of the error.
type Refused = (fn(&mut AttentionRequest<'static>), &'static str);

#[rustfmt::skip]
const REFUSED: &[Refused] = &[
    (|r| r.scores.scale = None, "scale: none; a latent cache has no default"),
    (|r| r.mask = Mask::Window { left: Some(100), right: Some(0) }, "mask window 100,0 on a latent cache"),
    (|r| r.mask = Mask::Prefix(Prefix::All(9)), "mask prefix"),
    (|r| r.mask = Mask::Chunked { chunk: 64 }, "mask chunked"),
    (|r| r.mask = Mask::Bits(MaskBits::contiguous(9 * FAR, 1 << 20, [1, 1, 1, 8192])), "mask bits"),
    (|r| r.scores.bias = Some(Bias::rows(9 * FAR, 1 << 20, DType::F16, [1, 1, 1, 8192], 8192)),
        "a bias on a latent cache"),
    (|r| r.scores.softcap = Some(30.0), "softcap on a latent cache"),
    (|r| r.scores.alibi = Some(AlibiSlopes { address: 9 * FAR, elements: 16, strides: [0, 1] }),
        "ALiBi slopes on a latent cache"),
    (|r| r.queries = Queries::Varlen(VarlenQueries::new(8, Index::new(8 * FAR, 9), 1)),
        "varlen queries on a latent cache"),
    (|r| rows(r, |view| view.dtype = DType::E4m3), "dtype e4m3 on a latent cache"),
    (|r| rows(r, |view| view.dtype = DType::Int8), "dtype int8 on a latent cache"),
    (|r| rows(r, |view| view.dtype = DType::Bf16), "queries of f16 on a cache of bf16"),
    (|r| r.o.shape[3] = 576, "o.shape"),
    (|r| r.o.shape[3] = 504, "o.shape"),
    (|r| r.q.shape[3] = 568, "cache.keys.shape"),
    (|r| cache(r).pages.values.shape[3] = 520, "head_dim_v 520"),
    (|r| cache(r).pages.values.shape[3] = 60, "head_dim_v 60"),
    (|r| cache(r).pages.values.shape[3] = 0, "head_dim_v: 0"),
    (|r| { rows(r, |view| view.shape[3] = 584); cache(r).pages.values.shape[3] = 512; r.q.shape[3] = 584 },
        "head_dim 584"),
    (|r| cache(r).pages.values.address += 1 << 20,
        "head_dim 576: kernels take multiples of 8 up to 512; k of a latent cache (KvPages::latent) may have \
         up to 576"),
    (|r| cache(r).pages.values.strides[1] = 1152, "cache.values.strides"),
    (|r| cache(r).pages.values.shape[1] = 32, "cache.values.shape"),
    (|r| cache(r).pages.keys.elements -= 1, "cache.keys.elements"),
    (|r| r.o.address = cache(r).pages.keys.address, "o.address"),
];

fn cache<'r>(r: &'r mut AttentionRequest<'static>) -> &'r mut KvCache {
    match &mut r.kv {
        KeysValues::Cache(cache) => cache,
        _ => panic!("a cache"),
    }
}

fn rows(r: &mut AttentionRequest<'static>, change: fn(&mut TensorView)) {
    let pages = &mut cache(r).pages;
    change(&mut pages.keys);
    change(&mut pages.values);
}

#[test]
fn what_kernels_lack_is_refused_by_name() {
    let good = decode(DType::F16, [8, 1, 16], DEEPSEEK);
    plan(&good, card("h200")).expect("valid");
    for (i, (spoil, begins)) in REFUSED.iter().enumerate() {
        let mut bad = good;
        spoil(&mut bad);
        let error = plan(&bad, card("h200")).expect_err(begins);
        let error = said(&error);
        assert!(error.starts_with(begins), "{i}: {error} should begin with {begins}");
        let remedies =
            ["make one request", "store the latents in f16", "out, or project", "use one, or project"];
        let has_remedy = remedies.iter().any(|remedy| error.contains(remedy));
        assert!(has_remedy || !error.contains("on a latent cache:"), "{i}: {error} has no remedy");
    }
}

#[test]
fn a_plan_is_for_its_widths() {
    let planned = plan(&decode(DType::F16, [8, 1, 16], DEEPSEEK), card("h200")).expect("valid");
    let error = planned.bind(&decode(DType::F16, [8, 1, 16], [576, 256])).expect_err("other values");
    assert!(said(&error).starts_with("head_dim_v"), "{error}");
}

/// Returns an append of 90 rows to a latent cache of 20 pages of 16.
fn append(head_dim: usize) -> Append {
    let rows = TensorView::bshd(FAR, 100 * head_dim as u64, DType::F16, [1, 100, 1, head_dim]);
    let pages = TensorView::bshd(3 * FAR, 320 * head_dim as u64, DType::F16, [20, 16, 1, head_dim]);
    Append::latent(rows, KvPages::latent(pages, head_dim - 64), Slots::i64(5 * FAR, 90))
}

#[test]
fn appends_write_rows_once() {
    let planned = plan(&append(576), card("a100")).expect("valid");
    assert_eq!(planned.contract().symbol, "append_copy");
    // There are 90 rows of two halves, each of 36 parts of 8 columns, and 7 rows per block of 256 threads.
    assert_eq!(planned.grid(), [13, 1, 1]);
    // The rows of a page may be followed by a gap of any number of chunks.
    let mut apart = append(576);
    let spread = |view: &mut TensorView| (view.strides[0], view.elements) = (16 * 576 + 16, 1 << 20);
    [&mut apart.pages.keys, &mut apart.pages.values].into_iter().for_each(spread);
    assert_eq!(plan(&apart, card("a100")).expect("valid").contract().symbol, "append_copy");
    for (spoil, begins) in [
        ((|a| *a = append(88)) as fn(&mut Append), "head_dim 88 of an append to a latent cache"),
        (|a| a.v.shape[3] = 576, "v: [1, 100, 1, 5"),
        (|a| a.v.address += 16, "v: [1, 100, 1, 5"),
        (|a| a.k.shape[3] = 560, "cache.keys.shape"),
        (|a| a.pages.keys.dtype = DType::E4m3, "f16 rows and an e4m3 latent cache"),
        (|a| a.slots.elements = 101, "slots.elements"),
        (|a| a.pages.keys.elements = 9, "cache.keys.elements"),
        (|a| (a.k.address, a.v.address) = (3 * FAR, 3 * FAR), "cache.keys.address"),
    ] {
        let mut bad = append(576);
        spoil(&mut bad);
        let error = plan(&bad, card("h200")).expect_err(begins);
        let error = said(&error);
        assert!(error.starts_with(begins), "{error} should begin with {begins}");
    }
}
