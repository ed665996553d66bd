//! Tests `ferroflash run` on int8 caches in files: compares the simulator with the reference.
use crate::cache::{check_on, tensors};
use crate::tensors::{Tensors, floats, integers};
use reference::Random;
use safetensors::Dtype;

/// Numbers of pages, of keys per page and of key heads.
const ROWS: [usize; 3] = [9, 16, 2];
/// The position of the first scale of page 7, the first page of the first sequence, in bytes.
const FIRST: usize = 7 * ROWS[1] * ROWS[2] * 4;

/// Converts keys and values to int8, with a scale for each row. The scales of pages that belong to no
/// sequence are NaN.
fn int8(tensors: Tensors) -> Tensors {
    drawn(tensors, 5)
}

/// Like [`int8`], with random numbers of this seed.
fn drawn(mut tensors: Tensors, seed: u64) -> Tensors {
    let mut random = Random::new(seed);
    for (_, dtype, shape, bytes) in tensors.iter_mut().filter(|(name, ..)| name.ends_with("_cache")) {
        *dtype = Dtype::I8;
        *bytes = (0..shape.iter().product()).map(|_| (random.normal() * 40.0) as i8 as u8).collect();
    }
    for name in ["k_scale", "v_scale"] {
        let scale = |row: usize| match row / (ROWS[1] * ROWS[2]) {
            1 | 3 | 4 | 6 => f32::NAN,
            _ => 0.01 + random.normal().abs() as f32 / 50.0,
        };
        let scales: Vec<_> = (0..ROWS.iter().product()).map(scale).collect();
        tensors.push(floats(name, &ROWS, &scales));
    }
    tensors
}

#[test]
fn int8_caches() {
    check_on("decode", "int8-one", &int8(tensors(1)), &[]);
    check_on("decode", "int8-few", &int8(tensors(4)), &["--window", "20,0", "--softcap", "20"]);
    let ragged = [tensors(4), vec![integers("cu_seqlens_q", &[4], &[0, 7, 10, 10])]].concat();
    check_on("mixed_few", "int8-ragged", &int8(ragged.clone()), &["--causal"]);
    check_on("mixed_few", "int8-window", &int8(ragged), &["--window", "20,0"]);
}

/// Products of int8 of keys as they are, and of e4m3.
#[test]
fn products_of_int8() {
    let many = || int8(tensors(40));
    let precision = ["--precision", "int8-fp8"];
    check_on("int8_fp8_paged", "int8-products", &many(), &[&precision[..], &["--window", "30,0"]].concat());
}

/// The window hides all keys of the first sequence but the last 16, so the scales of its first page do not
/// matter.
#[test]
fn scales_of_hidden_keys() {
    let mut tensors = int8(tensors(1));
    for scales in &mut tensors[5..] {
        scales.3[FIRST..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        scales.3[FIRST + 4..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    }
    check_on("decode", "int8-hidden", &tensors, &["--window", "15,0"]);
}

/// With one key, O is the value, rounded once: `--check` permits no rounding of the probability.
#[test]
fn sequences_of_one_key() {
    for seed in 1..=4 {
        let mut tensors = drawn(tensors(1), seed);
        tensors.iter_mut().filter(|(name, ..)| *name == "seqused_k").for_each(|lengths| {
            *lengths = integers("seqused_k", &[3], &[1, 0, 2]);
        });
        check_on("decode", &format!("int8-one-key-{seed}"), &tensors, &[]);
    }
}
