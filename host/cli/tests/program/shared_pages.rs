//! Tests `ferroflash run --shared-pages` on files: compares the simulator with the reference, and reads
//! invalid files.
use crate::common::{Folder, check as refused, report};
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

#[test]
fn pages_that_sequences_do_not_share() {
    let folder = Folder::new("shared-pages-refused");
    let path = write(&folder, "cache.safetensors", &tensors(&[4, 2, 4, 64]));
    let mut dense = tensors(&[4, 2, 4, 64]);
    dense.remove(3);
    dense[3] = integers("seqused_k", &[4], &[1, 2, 3, 4]);
    let dense = write(&folder, "dense.safetensors", &dense);
    let cases: [(&str, &[&str], &str); 10] = [
        (&path, &["--shared-pages", "2"], "`block_table[2, 1]` is 3; it must be 2"),
        (&path, &["--shared-pages", "3", "--prefix-groups", "4"], "`seqused_k[0]` is 40; it must be 48"),
        // Under a causal mask, the first of two queries sees one key less than the second.
        (
            &path,
            &["--shared-pages", "2", "--prefix-groups", "2", "--causal"],
            "`seqused_k[1]` is 32; it must be 33 or more",
        ),
        (&path, &["--shared-pages", "4"], "--shared-pages 4: it must be 1 or more and below 4"),
        (&path, &["--shared-pages", "18446744073709551615"], "--shared-pages 18446744073709551615: it must"),
        (&path, &["--shared-pages", "0"], "behind the shared pages, each sequence has at least one page"),
        (
            &path,
            &["--shared-pages", "1", "--prefix-groups", "3"],
            "--prefix-groups 3: it must divide 4, the number of sequences",
        ),
        (&path, &["--shared-pages", "1", "--window", "9,0"], "by position"),
        (
            &dense,
            &["--shared-pages", "1"],
            "only a block table lets sequences share pages; add `block_table`",
        ),
        (&path, &["--prefix-groups", "2"], "--shared-pages"),
    ];
    for (path, options, words) in cases {
        refused(&[&["run", "--device", "cpu", "--input", path], options].concat(), 2, words);
    }
}
