//! Tests `ferroflash run` on varlen sequences.
use crate::common::{Folder, report};
use crate::tensors::{self, floats, halves, integers, numbers, read};
use ferroflash::DType;
use ferroflash::plan::Problem;
use reference::{Layout, Memory, Sequences};
use safetensors::Dtype;

/// Writes `q` of 30 rows, `k` and `v` of 40 rows, and these arrays of integers.
fn write(folder: &Folder, name: &str, arrays: &[(&'static str, Vec<i32>)]) -> (String, Memory) {
    let problem = Problem::new(DType::F16, 1, 30, 4, 40).heads_k(2).seqlen_k(40);
    let memory = Memory::random(problem, Layout::Bshd, 3);
    let tensors = [("q", memory.q), ("k", memory.k), ("v", memory.v)]
        .map(|(name, place)| halves(name, Dtype::F16, &place.shape[1..], &memory.buffers[place.buffer]));
    let integers = arrays.iter().map(|(name, all)| integers(name, &[all.len()], all));
    (tensors::write(folder, name, &tensors.into_iter().chain(integers).collect::<Vec<_>>()), memory)
}

#[test]
fn sequences_are_what_they_are_alone() {
    let folder = Folder::new("varlen");
    let starts = [vec![0, 11, 11, 12, 29], vec![0, 20, 23, 23, 39]];
    let used = vec![17, 3, 0, 16];
    let arrays = [
        ("cu_seqlens_q", starts[0].clone()),
        ("cu_seqlens_k", starts[1].clone()),
        ("seqused_k", used.clone()),
    ];
    let (input, memory) = write(&folder, "varlen.safetensors", &arrays);
    for (device, options) in
        [("cpu", &["--causal"][..]), ("sim", &["--causal"]), ("sim", &["--window", "5,2"])]
    {
        let output = folder.path("o.safetensors");
        let run = ["run", "--device", device, "--input", &input, "--output", &output];
        // The CPU's result is the reference, so there is nothing to check.
        let check: &[&str] = if device == "sim" { &["--check"] } else { &[] };
        let report = report(&[&run[..], options, check].concat());
        assert_eq!(report["check"]["passed"].as_bool(), (device == "sim").then_some(true), "{report}");
        let [o, lse] = ["o", "lse"].map(|name| read(&output, name).expect("there"));
        assert_eq!((o.0, &o.1[..]), (Dtype::F16, &[30, 4, 40][..]));
        assert_eq!((lse.0, &lse.1[..]), (Dtype::F32, &[4, 30][..]));
        let (row, lse) = (4 * 40 * 2, numbers(&lse.2));
        // One sequence has no keys, and one row belongs to no sequence.
        for none in [11, 29] {
            assert!(o.2[none * row..][..row].iter().all(|byte| *byte == 0), "row {none}");
            assert!(lse.chunks(30).all(|head| head[none] == f32::NEG_INFINITY), "row {none}");
        }
        assert!(lse.chunks(30).all(|head| head[13].is_finite()));
    }
    let sequences = Sequences::new(starts, Some(used), [30, 40]).expect("valid");
    assert_eq!((sequences.count(), sequences.rows()), (4, 29));
    assert_eq!(memory.problem.shapes()[0], [1, 30, 4, 40]);
}

#[test]
fn sequences_without_a_query() {
    let folder = Folder::new("varlen-empty");
    for (name, keys) in [("keys", vec![0, 20, 40]), ("nothing", vec![0, 0, 0])] {
        let arrays = [("cu_seqlens_q", vec![0, 0, 0]), ("cu_seqlens_k", keys)];
        let (input, _) = write(&folder, name, &arrays);
        report(&["run", "--device", "cpu", "--input", &input]);
        let report = report(&["run", "--check", "--device", "sim", "--input", &input]);
        assert_eq!((&report["check"]["passed"], &report["check"]["max_error"]), (&true.into(), &0.0.into()));
    }
}

#[test]
fn slopes_of_heads_and_of_sequences() {
    let folder = Folder::new("slopes");
    let starts = [("cu_seqlens_q", vec![0, 11, 30]), ("cu_seqlens_k", vec![0, 20, 40])];
    let (input, _) = write(&folder, "varlen.safetensors", &starts);
    let arrays = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"].map(|name| {
        let (dtype, shape, bytes) = read(&input, name).expect("there");
        (name, dtype, shape, bytes)
    });
    let with = |name: &str, shape: &[usize]| {
        let slopes: Vec<_> = (0..shape.iter().product()).map(|i| 0.5 / (1 + i) as f32).collect();
        let slopes = floats("alibi_slopes", shape, &slopes);
        tensors::write(&folder, name, &[&arrays[..], &[slopes]].concat())
    };
    for (name, shape) in [("heads", &[4][..]), ("both", &[2, 4])] {
        let report = report(&["run", "--device", "sim", "--check", "--input", &with(name, shape)]);
        assert_eq!(report["check"]["passed"], true, "{report}");
        assert!(report["problem"].as_str().expect("words").contains("alibi"), "{report}");
    }
}
