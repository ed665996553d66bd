//! Tests `ferroflash run` on q, k and v of e4m3 in files: compares the simulator with the reference.
use crate::common::{Folder, report};
use crate::tensors::{Tensor, Tensors, floats, read, write};
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

#[test]
fn tensors_with_scales() {
    let folder = Folder::new("e4m3");
    let scales = |name, first: f32| floats(name, &[2, 2], &[first, 1.25, 0.5, 1.5]);
    let given = [tensors(), vec![scales("q_descale", 0.75), scales("v_descale", 2.0)]].concat();
    let run = |file: &str, more: &[&str]| {
        let output = folder.path("o");
        let args = ["run", "--input", file, "--output", &output, "--check", "--device", "sim"];
        let found = report(&[&args[..], &["--profile", "h200"], more].concat());
        assert_eq!(found["check"]["passed"], true, "{found}");
        assert!(found["kernel"].as_str().is_some_and(|name| name.starts_with("fp8_f16")), "{found}");
        let (dtype, shape, o) = read(&output, "o").expect("o");
        assert_eq!((dtype, &shape[..]), (Dtype::F16, &[2, 9, 4, 64][..]));
        o
    };
    let more = ["--causal", "--output-dtype", "f16"];
    let with = run(&write(&folder, "with", &given), &more);
    assert_ne!(with, run(&write(&folder, "without", &tensors()), &more));
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
