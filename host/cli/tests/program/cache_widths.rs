//! Tests `ferroflash run` on caches in files whose values have another head dim than keys.
use crate::common::Folder;
use crate::tensors::{Tensors, integers, normals, on_sim};
use reference::Random;

/// Two sequences of 3 queries of 4 heads, with 40 and 17 keys in shuffled pages of 16. Each pool is
/// `[pages, page, heads, columns]`.
fn tensors(columns: [usize; 2]) -> Tensors {
    let random = &mut Random::new(5);
    vec![
        normals("q", random, &[2, 3, 4, columns[0]]),
        normals("k_cache", random, &[9, 16, 2, columns[0]]),
        normals("v_cache", random, &[9, 16, 2, columns[1]]),
        integers("block_table", &[2, 3], &[7, 2, 5, 0, 8, -1]),
        integers("seqused_k", &[2], &[40, 17]),
    ]
}

#[test]
fn values_of_another_head_dim() {
    let folder = Folder::new("cache-widths");
    for (columns, options, kernel) in [
        ([192, 128], &["--causal"][..], "paged_f16_d192x128_causal_64x48"),
        ([64, 128], &["--window", "9,0"], "paged_f16_d192x128_local_64x32"),
        ([248, 72], &["--causal"], "paged_f16_d256_local_64x32"),
    ] {
        let (ran, [(shape, _), _]) = on_sim(&folder, &tensors(columns), options);
        assert_eq!((&ran[..], &shape[..]), (kernel, &[2, 3, 4, columns[1]][..]));
    }
}
