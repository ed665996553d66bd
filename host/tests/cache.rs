//! Tests caches: the parameters that kernels get, and the refused requests.
use ferroflash::{request::*, *};

const FAR: u64 = 1 << 40;

/// Returns a cache of 3 sequences, with a table of 4 columns, and 20 pages of 16 keys of 2 heads of 64
/// columns.
fn cache() -> KvCache {
    let shape = [20, 16, 2, 64];
    let [keys, values] = [1, 2].map(|n| TensorView::bshd(n * FAR, 20 * 16 * 2 * 64, DType::F16, shape));
    of(keys, values)
}

fn of(keys: TensorView, values: TensorView) -> KvCache {
    KvCache::paged(KvPages::new(keys, values), Index::new(3 * FAR, 12), 4, Index::new(4 * FAR, 3))
}

fn e4m3(cache: &mut KvCache, k_scale: KvScale, v_scale: KvScale) {
    both(cache, |pages| pages.dtype = DType::E4m3);
    cache.pages = cache.pages.scales(k_scale, v_scale);
}

fn both(cache: &mut KvCache, change: impl Fn(&mut TensorView)) {
    [&mut cache.pages.keys, &mut cache.pages.values].into_iter().for_each(change);
}

fn table(cache: &mut KvCache, elements: u64, columns: usize, stride: usize) {
    let entries = Index::new(3 * FAR, elements);
    let changed = KvCache::paged(cache.pages, entries, columns, cache.lengths).table_stride(stride);
    *cache = changed.max_k(cache.max_k);
}

type Change = fn(&mut KvCache);

/// The name of the fault, the change that makes it, and words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(&str, Change, &[&str])] = &[
    ("no page", |c| both(c, |p| p.shape[0] = 0), &["cache.keys.shape", "1 or more"]),
    ("dtypes differ", |c| c.pages.values.dtype = DType::Bf16, &["cache.values.dtype: bf16", "of keys, f16"]),
    ("shapes differ", |c| c.pages.values.shape[1] = 8, &["cache.values.shape", "[20, 16, 2, 64]"]),
    ("head dim", |c| both(c, |p| p.shape[3] = 60), &["head_dim 60", "f16", "multiples of 8"]),
    ("head dim of eight bits", |c| { both(c, |p| p.shape[3] = 56); e4m3(c, KvScale::One, KvScale::One) },
        &["head_dim 56", "e4m3", "multiples of 16"]),
    ("base misaligned", |c| c.pages.keys.address += 8, &["cache.keys.address", "multiple of 16"]),
    ("stride misaligned", |c| both(c, |p| p.strides[1] += 4), &["cache.keys.strides", "16 bytes"]),
    ("strides of eight bits", |c| { both(c, |p| p.strides[1] += 8); e4m3(c, KvScale::One, KvScale::One) },
        &["cache.keys.strides", "multiples of 16 elements"]),
    ("too small", |c| c.pages.values.elements -= 1, &["cache.values.elements: 40959", "need 40960"]),
    ("beyond 64 GiB", |c| both(c, |p| { p.strides[0] = 1 << 31; p.elements = 1 << 40 }), &["64 GiB"]),
    ("beyond 31 bits", |c| both(c, |p| *p = TensorView {
        strides: [0, 0, 0, 1], ..TensorView::bshd(p.address, 1 << 40, p.dtype, [1 << 20, 1 << 11, 2, 64])
    }), &["1048576 pages of 2048 keys", "less than 2^31 keys"]),
    ("no scale of 16 bits", |c| c.pages = c.pages.scales(KvScale::Value(2.0), KvScale::One),
        &["cache.k_scale: Value(2.0)", "a KV cache of f16 has no scales"]),
    ("scale 0", |c| e4m3(c, KvScale::Value(0.0), KvScale::One), &["cache.k_scale: 0e0", "above 0"]),
    ("scale negative", |c| e4m3(c, KvScale::One, KvScale::Value(-1.0)), &["cache.v_scale: -1e0"]),
    ("scale NaN", |c| e4m3(c, KvScale::One, KvScale::Value(f32::NAN)), &["cache.v_scale: NaN"]),
    ("scale misaligned",
        |c| e4m3(c, KvScale::Device { address: FAR + 2, elements: 6, strides: [2, 1] }, KvScale::One),
        &["cache.k_scale.address", "multiple of 4"]),
    ("scales too few",
        |c| e4m3(c, KvScale::One, KvScale::Device { address: 5 * FAR, elements: 5, strides: [2, 1] }),
        &["cache.v_scale.elements: 5", "need 6"]),
    ("scales backwards",
        |c| e4m3(c, KvScale::Device { address: 5 * FAR, elements: 6, strides: [-2, 1] }, KvScale::One),
        &["cache.k_scale.strides: [-2, 1]", "0 or more"]),
    ("lengths too few", |c| c.lengths.elements = 2, &["cache.lengths.elements: 2", "3 or more"]),
    ("lengths misaligned", |c| c.lengths.address += 2, &["cache.lengths.address", "multiple of 4"]),
    ("lengths beyond 64 bits", |c| c.lengths.address = u64::MAX - 7, &["cache.lengths.elements", "64 bits"]),
    ("table too small", |c| table(c, 11, 4, 4), &["cache.table.elements: 11", "12 or more"]),
    ("rows of the table too far apart", |c| table(c, 12, 4, 5), &["cache.table.elements: 12", "14 or more"]),
    ("no column", |c| table(c, 12, 0, 4), &["cache.table: 0 columns", "1 column or more"]),
    ("table beyond 32 bits", |c| table(c, 12, 4, 1 << 32),
        &["cache.table: 4 columns, rows 4294967296 entries apart"]),
    ("rows of the table in one place", |c| table(c, 12, 4, 0),
        &["cache.table: 4 columns, rows 0 entries apart", "must not overlap", "rows 4 apart"]),
    ("rows of the table overlap", |c| table(c, 12, 4, 3), &["cache.table: 4 columns, rows 3 entries apart"]),
    ("more keys than a row of the table has", |c| c.max_k = 65, &["cache.max_k: 65", "at most 64"]),
    ("no keys", |c| c.max_k = 0, &["cache.max_k: 0", "1 or more"]),
    ("more keys than a page has", |c| *c = KvCache::dense(c.pages, c.lengths).max_k(17),
        &["cache.max_k: 17", "at most 16, the keys of a page"]),
    ("sequences longer than any", |c| { table(c, 1 << 40, 1 << 27, 4); c.max_k = 1 << 30 },
        &["not supported: cache.max_k 1073741824"]),
    ("fewer pages than sequences", |c| {
        both(c, |p| p.shape[0] = 2);
        *c = KvCache::dense(c.pages, c.lengths);
    }, &["cache.keys.shape", "must be 3"]),
    ("rows too few", |c| *c = KvCache::dense(c.pages, c.lengths).rows(Index::new(3 * FAR, 2)),
        &["cache.rows.elements: 2", "3 or more"]),
    ("total of nothing", |c| c.total_k = Some(0), &["cache.total_k: 0"]),
];

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    for (name, change, says) in REFUSED {
        let mut c = cache();
        change(&mut c);
        let message = c.params(3).expect_err(name).to_string();
        for words in *says {
            assert!(message.contains(words), "{name}: {message:?} should contain {words:?}");
        }
    }
    assert!(cache().params(0).expect_err("no sequence").to_string().contains("sequences: 0"));
}

#[test]
fn every_layout_is_strides_in_chunks_of_16_bytes() {
    let check = |name: &str, keys: TensorView, values: TensorView, chunks: [u32; 4]| {
        let c = of(keys, values);
        let (params, _) = c.params(3).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            [params.page_chunks, params.row_chunks, params.head_chunks, params.chunks],
            chunks,
            "{name}"
        );
        assert_eq!((params.keys, params.values), (keys.address, values.address), "{name}");
        assert_eq!((params.pages, params.page.get()), (20, 16), "{name}");
        assert_eq!((params.table, params.columns, params.table_stride), (3 * FAR, 4, 4), "{name}");
    };
    let (shape, all) = ([20, 16, 2, 64], 20 * 16 * 2 * 64);
    for (dtype, chunks) in [(DType::F16, 8), (DType::Bf16, 8), (DType::E4m3, 4)] {
        let [nhd, hnd] =
            [TensorView::bshd, TensorView::bhsd].map(|view| [1, 2].map(|n| view(n * FAR, all, dtype, shape)));
        check("nhd", nhd[0], nhd[1], [32 * chunks, 2 * chunks, chunks, chunks]);
        check("hnd", hnd[0], hnd[1], [32 * chunks, chunks, 16 * chunks, chunks]);
        let [k, v] = TensorView::interleaved(FAR, 2 * all, dtype, shape, false);
        check("interleaved nhd", k, v, [64 * chunks, 2 * chunks, chunks, chunks]);
        assert_eq!(v.address - k.address, 32 * 16 * u64::from(chunks));
        let [k, v] = TensorView::interleaved(FAR, 2 * all, dtype, shape, true);
        check("interleaved hnd", k, v, [64 * chunks, chunks, 16 * chunks, chunks]);
        let short = TensorView::interleaved(FAR, 2 * all - 1, dtype, shape, true);
        assert!(
            of(short[0], short[1])
                .params(3)
                .expect_err("short")
                .to_string()
                .contains("cache.values.elements")
        );
    }
}

#[test]
fn a_dense_cache_is_a_page_a_sequence_and_rows_are_a_table_of_one_column() {
    let dense = KvCache::dense(cache().pages, Index::new(4 * FAR, 3));
    let (params, _) = dense.params(3).expect("valid");
    assert_eq!((params.table, params.pages, params.page.get(), dense.max_k), (0, 20, 16, 16));
    let (params, _) = dense.rows(Index::new(3 * FAR, 3)).params(3).expect("valid");
    assert_eq!((params.table, params.columns, params.table_stride), (3 * FAR, 1, 1));
}

#[test]
fn scales_are_numbers_or_memory() {
    let mut c = cache();
    let memory = KvScale::Device { address: 5 * FAR, elements: 2, strides: [0, 1] };
    e4m3(&mut c, KvScale::Value(0.5), memory);
    let (_, [k, v]) = c.params(3).expect("valid");
    assert_eq!((k.base, k.value), (0, 0.5));
    assert_eq!((v.base, v.sequence_bytes, v.head_bytes), (5 * FAR, 0, 4));
    let (_, [k, _]) = cache().params(3).expect("valid");
    assert_eq!((k.base, k.value), (0, 1.0));
}

#[test]
fn eight_bits_are_a_caches_alone() {
    let view = |n: u64| TensorView::bshd(n * FAR, 1 << 20, DType::E4m3, [1, 64, 2, 64]);
    let l4 = Capabilities::profile("l4").expect("known");
    let message =
        plan(&AttentionRequest::dense(view(1), view(2), view(3), view(4)), l4).expect_err("e4m3").to_string();
    assert!(
        message.contains("not supported: dtype e4m3") && message.contains("only KV caches are e4m3"),
        "{message}"
    );
}
