//! Tests `ferroflash run` on caches in files: compares the simulator with the reference.
use crate::common::{Folder, check_error, ferroflash};
use crate::tensors::{Output, Tensor, Tensors, floats, integers, normals, numbers, on_both, write};
use reference::{Random, e4m3};
use safetensors::Dtype;

/// Keys per page, and number of pages.
const PAGE: usize = 16;
const PAGES: usize = 9;
/// Query heads, key heads, columns.
const HEADS: [usize; 2] = [4, 2];
const DIM: usize = 64;

/// Returns three sequences of `queries` queries each, with 40, 0 and 17 keys in shuffled pages.
pub fn tensors(queries: usize) -> Tensors {
    let (random, pool) = (&mut Random::new(3), [PAGES, PAGE, HEADS[1], DIM]);
    vec![
        normals("q", random, &[3 * queries, HEADS[0], DIM]),
        normals("k_cache", random, &pool),
        normals("v_cache", random, &pool),
        integers("block_table", &[3, 4], &[7, 2, 5, -1, -1, -1, -1, -1, 0, 8, -1, -1]),
        integers("seqused_k", &[3], &[40, 0, 17]),
    ]
}

/// Makes a dense cache without a block table: one page of 48 keys per sequence, heads first.
fn dense(mut tensors: Tensors) -> Tensors {
    tensors.retain(|(name, ..)| *name != "block_table");
    for (_, dtype, shape, bytes) in tensors.iter_mut().filter(|(name, ..)| name.ends_with("_cache")) {
        *shape = vec![3, HEADS[1], 48, DIM];
        bytes.truncate(3 * HEADS[1] * 48 * DIM * if *dtype == Dtype::F8_E4M3 { 1 } else { 2 });
    }
    tensors
}

/// Converts keys and values to e4m3.
fn eight(mut tensors: Tensors) -> Tensors {
    let mut random = Random::new(4);
    for (_, dtype, shape, bytes) in tensors.iter_mut().filter(|(name, ..)| name.ends_with("_cache")) {
        *dtype = Dtype::F8_E4M3;
        *bytes = (0..shape.iter().product()).map(|_| e4m3::encode(random.normal())).collect();
    }
    tensors
}

/// Runs a file on the CPU and in the simulator, and judges both. Returns the CPU's results.
#[track_caller]
fn check(test: &str, tensors: &Tensors, options: &[&str]) -> [Output; 2] {
    check_on("decode", test, tensors, options)
}

/// Like [`check`], with a kernel of this family.
#[track_caller]
pub fn check_on(family: &str, test: &str, tensors: &Tensors, options: &[&str]) -> [Output; 2] {
    let (kernel, [cpu, _]) = on_both(test, tensors, options);
    assert!(kernel.starts_with(&format!("{family}_f16_")) && kernel.contains("d64"), "{kernel}");
    cpu
}

#[test]
fn pages_by_a_table() {
    let [(o, bits), (lse, lse_bytes)] = check("cache-pages", &tensors(1), &[]);
    assert_eq!((o, lse), (vec![3, 4, 64], vec![4, 3]));
    // The second sequence has no key.
    let row = HEADS[0] * DIM * 2;
    assert!(bits[row..2 * row].iter().all(|byte| *byte == 0));
    let lse = numbers(&lse_bytes);
    assert!((0..12).all(|i| (lse[i] == f32::NEG_INFINITY) == (i % 3 == 1)), "{lse:?}");
}

#[test]
fn several_queries_windows_softcap_and_invariance() {
    let mut several = tensors(4);
    several.push(integers("cu_seqlens_q", &[4], &[0, 4, 8, 12]));
    check("cache-causal", &several, &["--causal"]);
    check("cache-invariant", &several, &["--causal", "--invariant"]);
    check_on("paged", "cache-chunks", &several, &["--causal", "--invariant", "chunks"]);
    check("cache-window", &several, &["--window", "9,0", "--softcap", "20", "--scale", "0.2"]);
}

#[test]
fn ragged_queries() {
    // The second sequence has no key, the third has no query, and two rows belong to no sequence.
    let ragged = |starts: &[i32]| [tensors(4), vec![integers("cu_seqlens_q", &[4], starts)]].concat();
    let [(o, bits), (lse, logs_of)] =
        check_on("mixed_few", "cache-ragged", &ragged(&[0, 7, 10, 10]), &["--causal"]);
    assert_eq!((o, lse), (vec![12, 4, 64], vec![4, 12]));
    let (row, lse) = (HEADS[0] * DIM * 2, numbers(&logs_of));
    let is_none = |at: usize| bits[at * row..][..row].iter().all(|byte| *byte == 0);
    for at in 0..12 {
        assert_eq!(is_none(at), at >= 7, "row {at}");
        assert!(lse.chunks(12).all(|head| (head[at] == f32::NEG_INFINITY) == (at >= 7)), "row {at}");
    }
    // Rows that belong to no sequence do not change the results of the sequences.
    let mut even = tensors(4);
    (even[0].2[0], even[0].3) = (9, even[0].3[..9 * row].to_vec());
    let even = check("cache-even", &even, &["--window", "20,0"]);
    let some = check_on("mixed_few", "cache-some", &ragged(&[0, 3, 6, 9]), &["--window", "20,0"]);
    assert_eq!(even[0].1, some[0].1[..9 * row]);
    let (even, some) = (numbers(&even[1].1), numbers(&some[1].1));
    assert!(even.chunks(9).zip(some.chunks(12)).all(|(even, some)| even == &some[..9]));
    // The same on an e4m3 cache, with scales.
    let scales = [floats("k_scale", &[2], &[2.0, 0.3]), floats("v_scale", &[], &[0.5])];
    let eight = |starts: &[i32]| [eight(ragged(starts)), scales.to_vec()].concat();
    check_on("mixed_few", "eight-ragged", &eight(&[0, 7, 10, 10]), &["--causal"]);
    check_on("mixed_few", "eight-some", &eight(&[0, 3, 6, 9]), &["--window", "20,0"]);
}

#[test]
fn slopes() {
    let with = |slopes: Tensor, more: &[Tensor]| [tensors(1), vec![slopes], more.to_vec()].concat();
    let none = check("cache-none", &tensors(1), &[]);
    let flat = check_on("paged", "cache-flat", &with(floats("alibi_slopes", &[4], &[0.0; 4]), &[]), &[]);
    assert_eq!(none[0], flat[0]);
    let of_heads = [0.5, 0.25, 0.0, -0.125];
    let steep = with(floats("alibi_slopes", &[4], &of_heads), &[]);
    let steep = check_on("paged", "cache-steep", &steep, &["--softcap", "20"]);
    // A merge kernel adds sinks. The second sequence has no key, so its results are the sinks alone.
    let sinks = [0.5, -1.0, 2.0, f32::NEG_INFINITY];
    let both = with(floats("alibi_slopes", &[4], &of_heads), &[floats("sinks", &[4], &sinks)]);
    let [_, (_, lse)] = check_on("paged", "cache-steep-sinks", &both, &[]);
    let lse = numbers(&lse);
    assert!((0..4).all(|head| lse[head * 3 + 1] == sinks[head]), "{lse:?}");
    let of_each = [of_heads, [1.0; 4], of_heads].concat();
    let of_each = floats("alibi_slopes", &[3, 4], &of_each);
    let each = check_on("paged", "cache-each", &with(of_each.clone(), &[]), &["--softcap", "20"]);
    // The second sequence has no key.
    assert!(steep[0] == each[0] && steep[0] != none[0]);
    let ragged = with(of_each, &[integers("cu_seqlens_q", &[4], &[0, 2, 2, 3])]);
    check_on("paged", "cache-ragged-slopes", &ragged, &["--causal"]);
}

#[test]
fn a_dense_cache_by_heads_with_sinks() {
    let mut dense = dense(tensors(1));
    // The last head has no sink.
    let sinks = [0.5, -1.0, 2.0, f32::NEG_INFINITY];
    dense.push(floats("sinks", &[4], &sinks));
    let [_, (_, lse)] = check("cache-dense", &dense, &["--layout", "bhsd"]);
    let lse = numbers(&lse);
    assert!((0..4).all(|head| lse[head * 3 + 1] == sinks[head]), "{lse:?}");
}

#[test]
fn eight_bits() {
    let plain = check("eight-plain", &eight(tensors(1)), &[]);
    let with = |test: &str, scales: [Tensor; 2]| {
        let mut tensors = eight(tensors(1));
        tensors.extend(scales);
        check(test, &tensors, &[])
    };
    // The scales are powers of two. A scale of the keys changes the softmax scale, and a scale of the values
    // changes O.
    let shared = with("eight-shared", [floats("k_scale", &[], &[2.0]), floats("v_scale", &[1], &[0.5])]);
    let twice = check("eight-twice", &eight(tensors(1)), &["--scale", "0.25"]);
    assert_eq!(shared[1], twice[1]);
    let values = |bytes: &[u8]| -> Vec<f64> {
        let bits = bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b));
        bits.map(f64::from).collect()
    };
    let ratios = values(&shared[0].1).into_iter().zip(values(&twice[0].1));
    assert!(ratios.into_iter().all(|(half, whole)| (2.0 * half - whole).abs() <= whole.abs() / 512.0 + 1e-6));
    // There is one scale per key head. The first head's scales are 1.
    let each = [floats("k_scale", &[2], &[1.0, 0.3]), floats("v_scale", &[2], &[1.0, 1.7])];
    let each = with("eight-each", each);
    let (old, new) = (numbers(&plain[1].1), numbers(&each[1].1));
    assert!((0..12).filter(|i| i % 3 != 1).all(|i| (old[i] == new[i]) == (i < 6)), "{old:?} {new:?}");
    let mut by_heads = dense(eight(tensors(1)));
    by_heads.extend([floats("v_scale", &[2], &[0.1, 3.0]), floats("sinks", &[4], &[0.0; 4])]);
    check("eight-dense", &by_heads, &["--layout", "bhsd", "--softcap", "20"]);
    // With one key, O is the key's value, scaled and rounded.
    let mut one = eight(tensors(1));
    one.extend([floats("k_scale", &[1], &[0.01]), floats("v_scale", &[2], &[0.01, 0.013])]);
    check("eight-one", &one, &["--window", "0,0"]);
    // These values overflow f16.
    let (folder, mut large) = (Folder::new("eight-large"), eight(tensors(1)));
    large.push(floats("v_scale", &[], &[1e6]));
    let input = write(&folder, "cache.safetensors", &large);
    let output = ferroflash(&["run", "--check", "--device", "sim", "--input", &input]).output();
    check_error(&output.expect("starts"), 2, "--check: o cannot be judged");
}
