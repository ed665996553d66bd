//! Tests `ferroflash run --shared-pages` on files: compares the simulator with the reference.
use crate::common::{Folder, report};
use crate::tensors::{Tensors, integers, normals, write};
use reference::Random;

/// Four sequences of two queries of 4 heads, with 40, 32, 37 and 61 keys in pages of 16. The first two
/// sequences share two pages, and the last two share two other pages. All four share the first page.
fn tensors(q: &[usize]) -> Tensors {
    let random = &mut Random::new(7);
    vec![
        normals("q", random, q),
        normals("k_cache", random, &[9, 16, 2, 64]),
        normals("v_cache", random, &[9, 16, 2, 64]),
        integers("block_table", &[4, 4], &[7, 2, 5, -1, 7, 2, -1, -1, 7, 3, 0, -1, 7, 3, 1, 8]),
        integers("seqused_k", &[4], &[40, 32, 37, 61]),
    ]
}

#[test]
fn groups_share_pages() {
    let folder = Folder::new("shared-pages");
    for (shape, options) in [
        (&[4, 2, 4, 64][..], &["--shared-pages", "2", "--prefix-groups", "2"][..]),
        (&[8, 4, 64], &["--shared-pages", "1"]),
        (&[4, 1, 4, 64], &["--shared-pages", "1", "--causal", "--softcap", "30"]),
    ] {
        let input = write(&folder, "cache.safetensors", &tensors(shape));
        let run = ["run", "--device", "sim", "--profile", "a100", "--input", &input, "--check"];
        let report = report(&[&run[..], options].concat());
        assert_eq!(report["check"]["passed"].as_bool(), Some(true), "{report}");
        assert!(
            report["reason"].as_str().is_some_and(|reason| reason.contains("share prefixes")),
            "{report}"
        );
    }
}
