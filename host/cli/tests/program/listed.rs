//! Tests `ferroflash run` on files with lists of keys (sparse MLA): compares the simulator with the
//! reference.
use crate::tensors::{self, Output, Tensor, Tensors, floats, integers, numbers, on_both};
use ferroflash::DType;
use reference::Random;
use safetensors::Dtype;

const OPTIONS: [&str; 4] = ["--v-width", "512", "--scale", "0.0721"];
const TOPK: usize = 70;

fn halves(name: &'static str, seed: u64, shape: &[usize]) -> Tensor {
    let bits = Random::new(seed).normals(DType::Bf16, shape.iter().product());
    tensors::halves(name, Dtype::BF16, shape, &bits)
}

/// Returns lists of slots in any order, some of them twice, among entries that name no key. The second list
/// names none.
fn lists(shape: &[usize], slots: i32) -> Tensor {
    let none = [-1, slots, i32::MAX, i32::MIN];
    let (mut random, count) = (Random::new(3), shape.iter().product::<usize>());
    let entry = |i: usize| match random.bits() {
        bits if bits.is_multiple_of(4) || i / TOPK == 1 => none[bits as usize / 4 % 4],
        bits => (bits >> 8) as i32 & i32::MAX,
    };
    let all: Vec<_> = (0..count).map(entry).collect();
    let all: Vec<_> = all.iter().map(|x| if none.contains(x) { *x } else { x % slots }).collect();
    integers("indices", shape, &all)
}

/// Returns six queries of 5 heads, with lists of the slots of 4 pages of 16 keys.
fn tensors() -> Tensors {
    vec![halves("q", 1, &[6, 5, 576]), halves("k_cache", 2, &[4, 16, 1, 576]), lists(&[6, 1, TOPK], 64)]
}

/// Runs a file on the CPU and in the simulator, and judges the simulator's result. Returns O and LSE.
#[track_caller]
fn check(test: &str, tensors: &Tensors, options: &[&str]) -> [Output; 2] {
    let (kernel, [cpu, sim]) = on_both(test, tensors, options);
    assert!(kernel.starts_with("sparse_mla_bf16_d576_full_"), "{kernel}");
    for (i, (cpu, sim)) in numbers(&cpu[1].1).iter().zip(numbers(&sim[1].1)).enumerate() {
        assert!(cpu == &sim || (cpu - sim).abs() < 1e-2, "LSE {i}: {cpu}, {sim}");
    }
    sim
}

#[test]
fn each_query_has_a_list() {
    let [o, lse] = check("listed", &tensors(), &OPTIONS);
    assert_eq!((o.0, lse.0), (vec![6, 5, 512], vec![5, 6]));
    let query = o.1.len() / 6;
    assert!(o.1[query..2 * query].iter().all(|byte| *byte == 0), "the second list names no key");
    assert!(o.1[..query].iter().any(|byte| *byte != 0));
}

#[test]
fn lists_of_sequences() {
    let flat = check("listed-flat", &tensors(), &OPTIONS);
    let mut of_sequences = tensors();
    (of_sequences[0].2, of_sequences[2].2) = (vec![2, 3, 5, 576], vec![2, 3, TOPK]);
    let [o, lse] = check("listed-sequences", &of_sequences, &OPTIONS);
    assert_eq!((o.0, lse.0), (vec![2, 3, 5, 512], vec![2, 5, 3]));
    assert!(o.1 == flat[0].1, "the same queries");
    for (at, of_head) in lse.1.chunks(4).enumerate() {
        let [b, head, i] = [at / 3 / 5, at / 3 % 5, at % 3];
        assert_eq!(of_head, &flat[1].1[4 * (head * 6 + b * 3 + i)..][..4]);
    }
}

#[test]
fn a_flat_cache_of_two_latent_heads_with_sinks() {
    let tensors = vec![
        halves("q", 4, &[6, 4, 288]),
        halves("k_cache", 5, &[40, 2, 288]),
        lists(&[6, 2, TOPK], 40),
        floats("sinks", &[4], &[0.5, f32::NEG_INFINITY, 2.0, -1.0]),
    ];
    check("listed-sinks", &tensors, &["--v-width", "256", "--scale", "0.1"]);
}
