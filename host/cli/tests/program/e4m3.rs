//! Tests `ferroflash run` on q, k and v of e4m3 in files: compares the simulator with the reference.
use crate::common::{Folder, report};
use crate::tensors::{Tensor, Tensors, floats, integers, normals, on_sim, read, results, write};
use ferroflash::DType;
use reference::Random;
use safetensors::Dtype;

/// Draws a tensor of e4m3.
fn drawn(name: &'static str, random: &mut Random, shape: &[usize]) -> Tensor {
    let bits = random.normals(DType::E4m3, shape.iter().product());
    (name, Dtype::F8_E4M3, shape.into(), bits.iter().map(|bits| *bits as u8).collect())
}

fn tensors() -> Tensors {
    let mut random = Random::new(3);
    let mut of = |name, shape: [usize; 4]| drawn(name, &mut random, &shape);
    vec![of("q", [2, 9, 4, 64]), of("k", [2, 140, 2, 64]), of("v", [2, 140, 2, 64])]
}

fn scales(name: &'static str, first: f32) -> Tensor {
    floats(name, &[2, 2], &[first, 1.25, 0.5, 1.5])
}

/// Runs tensors on a kernel of this family, and returns the bytes of an O of this shape.
fn run(folder: &Folder, tensors: &Tensors, family: &str, shape: &[usize]) -> Vec<u8> {
    let options = ["--profile", "h200", "--causal", "--output-dtype", "f16"];
    let (kernel, _) = on_sim(folder, tensors, &options);
    assert!(kernel.starts_with(family), "{kernel}");
    let (dtype, own, o) = read(&folder.path("sim"), "o").expect("o");
    assert_eq!((dtype, &own[..]), (Dtype::F16, shape));
    o
}

#[test]
fn tensors_with_scales() {
    let folder = Folder::new("e4m3");
    let given = [tensors(), vec![scales("q_descale", 0.75), scales("v_descale", 2.0)]].concat();
    let shape = [2, 9, 4, 64];
    let with = run(&folder, &given, "fp8_f16", &shape);
    assert_ne!(with, run(&folder, &tensors(), "fp8_f16", &shape));
}

#[test]
fn varlen_tensors_with_scales() {
    let folder = Folder::new("e4m3_varlen");
    let mut random = Random::new(5);
    let mut of = |name, shape: [usize; 3]| drawn(name, &mut random, &shape);
    let plain = vec![
        of("q", [30, 4, 64]),
        of("k", [190, 2, 64]),
        of("v", [190, 2, 64]),
        integers("cu_seqlens_q", &[3], &[0, 9, 30]),
        integers("cu_seqlens_k", &[3], &[0, 150, 190]),
    ];
    let given = [plain.clone(), vec![scales("k_descale", 0.75), scales("v_descale", 2.0)]].concat();
    let shape = [30, 4, 64];
    let with = run(&folder, &given, "fp8_packed_f16", &shape);
    assert_ne!(with, run(&folder, &plain, "fp8_packed_f16", &shape));
}

/// Products of e4m3 on a cache, whose scale of keys belongs to heads.
#[test]
fn a_cache_with_scales() {
    let folder = Folder::new("e4m3-cache");
    let mut random = Random::new(7);
    let q = normals("q", &mut random, &[2, 40, 4, 64]);
    let [k, v] = ["k_cache", "v_cache"].map(|name| drawn(name, &mut random, &[9, 16, 2, 64]));
    let table = integers("block_table", &[2, 4], &[7, 2, 5, -1, 0, 8, -1, -1]);
    let lengths = integers("seqused_k", &[2], &[40, 17]);
    let scales = [floats("k_scale", &[2], &[0.75, 2.0]), floats("v_scale", &[1], &[0.5])];
    let all = [vec![q, k, v, table, lengths], scales.into()].concat();
    let options = ["--causal", "--precision", "fp8"];
    let (kernel, [on_sim, _]) = on_sim(&folder, &all, &[&options[..], &["--profile", "h200"]].concat());
    assert!(kernel.starts_with("fp8_paged_f16_e4m3"), "{kernel}");
    let output = folder.path("cpu");
    let on_cpu = ["run", "--device", "cpu", "--input", &folder.path("input"), "--output", &output];
    report(&[&on_cpu[..], &options].concat());
    let [on_cpu, _] = results(&output);
    assert_eq!(on_sim.0, on_cpu.0);
    assert_ne!(on_sim.1, on_cpu.1, "the CPU rounds nothing");
}

/// The CPU needs no card that has the precision.
#[test]
fn the_cpu_takes_tensors_of_e4m3() {
    let folder = Folder::new("e4m3-cpu");
    let (input, output) = (write(&folder, "input", &tensors()), folder.path("o"));
    report(&["run", "--input", &input, "--output", &output, "--device", "cpu"]);
    let (dtype, shape, o) = read(&output, "o").expect("o");
    assert_eq!((dtype, &shape[..]), (Dtype::BF16, &[2, 9, 4, 64][..]));
    assert!(o.iter().any(|byte| *byte != 0));
}
