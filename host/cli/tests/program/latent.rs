//! Tests `ferroflash run --v-width` on latent caches in files: compares the simulator with the reference.
use crate::common::{Folder, check as refused, report};
use crate::tensors::{Tensors, integers, normals, on_both, results, write};
use reference::Random;

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
    let input = write(&folder, "qkv.safetensors", &tensors);
    let output = folder.path("o");
    let kernel = "fwd_f16_d192x128_full_128x48";
    let on_card = ["run", "--device", "sim", "--profile", "a100", "--config", kernel, "--check"];
    let run = [&on_card[..], &["--input", &input, "--output", &output]].concat();
    let report = report(&run);
    assert_eq!(report["check"]["passed"].as_bool(), Some(true), "{report}");
    assert_eq!(report["kernel"].as_str(), Some(kernel), "{report}");
    assert_eq!(results(&output)[0].0, [1, 70, 2, 128]);
    tensors[2] = of("v", 100);
    let input = write(&folder, "odd.safetensors", &tensors);
    refused(&["run", "--device", "sim", "--input", &input], 2, "head_dim of v 100");
}
