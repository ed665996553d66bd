//! Tests the parameters of caches that kernels get.
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
    let KvPages { keys, values, .. } = &mut cache.pages;
    (keys.dtype, values.dtype) = (DType::E4m3, DType::E4m3);
    cache.pages = cache.pages.scales(k_scale, v_scale);
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
    assert!(cache().params(0).expect_err("no sequence").to_string().contains("sequences: 0"));
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
