//! Tests `ferroflash run --v-width` on latent caches in files: compares the simulator with the reference.
use crate::common::{Folder, check as refused};
use crate::tensors::{Tensor, Tensors, floats, halves, integers, normals, on_both, on_sim, write};
use ferroflash::DType;
use reference::Random;
use safetensors::Dtype;

/// DeepSeek's numbers of columns of keys and of values, and its scale.
const WIDTHS: [usize; 2] = [576, 512];
const OPTIONS: [&str; 4] = ["--v-width", "512", "--scale", "0.0721"];

/// Returns three sequences of `queries` queries of 6 heads, with 40, 0 and 17 keys in shuffled pages of 16.
fn tensors(queries: usize) -> Tensors {
    let random = &mut Random::new(7);
    vec![
        normals("q", random, &[3, queries, 6, WIDTHS[0]]),
        normals("k_cache", random, &[9, 16, 1, WIDTHS[0]]),
        integers("block_table", &[3, 3], &[7, 2, 5, -1, -1, -1, 0, 8, -1]),
        integers("seqused_k", &[3], &[40, 0, 17]),
    ]
}

/// Runs a file on the CPU and in the simulator. Returns the bytes of the simulator's O.
#[track_caller]
fn check(test: &str, tensors: &Tensors, options: &[&str], o_shape: &[usize]) -> Vec<u8> {
    let (kernel, [_, [(shape, o), _]]) = on_both(test, tensors, options);
    assert!(kernel.starts_with("mla_f16_d576_causal_"), "{kernel}");
    assert_eq!(shape, o_shape);
    o
}

#[test]
fn one_tensor_serves_as_keys_and_values() {
    let o = check("latent", &tensors(2), &[&OPTIONS[..], &["--causal"]].concat(), &[3, 2, 6, 512]);
    // The second sequence has no key.
    let sequence = o.len() / 3;
    assert!(o[sequence..2 * sequence].iter().all(|byte| *byte == 0));
    assert!(o[..sequence].iter().any(|byte| *byte != 0));
}

#[test]
fn rows_of_queries_and_other_widths() {
    let (mut random, mut narrow) = (Random::new(8), tensors(1));
    narrow[0] = normals("q", &mut random, &[3, 6, 288]);
    narrow[1] = normals("k_cache", &mut random, &[9, 1, 16, 288]);
    let options = ["--v-width", "256", "--scale", "0.1", "--layout", "bhsd"];
    check("latent-narrow", &narrow, &options, &[3, 6, 256]);
}

/// MLA after up-projection: keys of 192 columns, values of 128.
#[test]
fn tensors_of_two_widths() {
    let folder = Folder::new("two-widths");
    let mut random = Random::new(11);
    let mut of = |name, columns| normals(name, &mut random, &[1, 70, 2, columns]);
    let mut tensors = vec![of("q", 192), of("k", 192), of("v", 128)];
    let kernel = "fwd_f16_d192x128_full_128x48";
    let (ran, [(shape, _), _]) = on_sim(&folder, &tensors, &["--profile", "a100", "--config", kernel]);
    assert_eq!((&ran[..], &shape[..]), (kernel, &[1, 70, 2, 128][..]));
    tensors[2] = of("v", 100);
    let input = write(&folder, "odd.safetensors", &tensors);
    refused(&["run", "--device", "sim", "--input", &input], 2, "head_dim of v 100");
}

/// Returns the tensors of a test, with queries of bf16 and this cache of nine pages of 16 keys.
fn of_eight_bits(cache: Tensor) -> Tensors {
    let mut all = tensors(2);
    let q = Random::new(9).normals(DType::Bf16, 3 * 2 * 6 * WIDTHS[0]);
    (all[0], all[1]) = (halves("q", Dtype::BF16, &[3, 2, 6, WIDTHS[0]], &q), cache);
    all
}

/// Runs a file of eight bits on the CPU and in the simulator.
#[track_caller]
fn check_eight_bits(test: &str, tensors: &Tensors, symbol: &str) {
    let (kernel, [_, [(shape, o), _]]) = on_both(test, tensors, &[&OPTIONS[..], &["--causal"]].concat());
    assert!(kernel.starts_with(symbol), "{kernel}");
    assert_eq!(shape, [3, 2, 6, 512]);
    assert!(o[..o.len() / 3].iter().any(|byte| *byte != 0));
}

#[test]
fn latents_of_e4m3_with_a_scale() {
    let bits = Random::new(10).normals(DType::E4m3, 9 * 16 * WIDTHS[0]);
    let bytes = bits.iter().map(|bits| *bits as u8).collect();
    let mut tensors = of_eight_bits(("k_cache", Dtype::F8_E4M3, vec![9, 16, 1, WIDTHS[0]], bytes));
    tensors.push(floats("k_scale", &[1], &[0.37]));
    check_eight_bits("latent-e4m3", &tensors, "mla_bf16_e4m3_d576_causal_");
}

/// Rows of 656 bytes, whose scales have all bits of an f32.
#[test]
fn latents_with_scales_in_their_rows() {
    let mut random = Random::new(11);
    let row = |_| {
        let mut row: Vec<u8> = random.normals(DType::E4m3, 512).iter().map(|bits| *bits as u8).collect();
        row.extend((0..4).flat_map(|_| (random.normal().abs() as f32 + 0.01).to_le_bytes()));
        row.extend(random.normals(DType::Bf16, 64).iter().flat_map(|bits| bits.to_le_bytes()));
        row
    };
    let bytes: Vec<u8> = (0..9 * 16).flat_map(row).collect();
    let tensors = of_eight_bits(("k_cache", Dtype::U8, vec![9, 16, 1, 656], bytes.clone()));
    check_eight_bits("latent-scaled", &tensors, "mla_bf16_e4m3_scaled_d576_causal_");
    let folder = Folder::new("latent-odd");
    let odd = of_eight_bits(("k_cache", Dtype::U8, vec![9, 16, 1, 576], bytes[..9 * 16 * 576].into()));
    let input = write(&folder, "odd.safetensors", &odd);
    let run = [&["run", "--device", "sim", "--input", &input][..], &OPTIONS].concat();
    refused(&run, 2, "a U8 cache has rows of 656 bytes");
}
