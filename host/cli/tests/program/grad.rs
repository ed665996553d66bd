//! Tests gradients of files.
use crate::common::{DEMO, Folder, check, check_error, ferroflash, report, text};
use crate::tensors::{floats, halves, integers, read, write, zeros};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::ptx::is_embedded;
use reference::{Layout, Memory, Random};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Writes gradients of the demo's output, and computes the gradients of its inputs in the simulator, twice.
#[test]
fn gradients_of_a_file_are_those_of_the_reference() {
    let folder = Folder::new("grad");
    let (_, q, _) = read(DEMO, "q").expect("there");
    let [batch, rows, heads, _] = q[..] else { panic!("{q:?}") };
    // Gradients of 1 and 0.5 in f16, and of 1 in f32.
    let d_o = |bits: fn(usize) -> u16| {
        halves("do", Dtype::F16, &q, &(0..q.iter().product()).map(bits).collect::<Vec<_>>())
    };
    let d_lse = floats("dlse", &[batch, heads, rows], &vec![1.0; batch * heads * rows]);
    let upstream = [d_o(|i| if i % 3 == 0 { 0x3c00 } else { 0x3800 }), d_lse];
    let grad = write(&folder, "do.safetensors", &upstream);
    let outputs = ["first.safetensors", "second.safetensors"].map(|name| folder.path(name));
    let run = ["run", "--input", DEMO, "--grad", &grad, "--causal", "--device", "sim", "--check", "--output"];
    if !is_embedded("bwd_dkdv_f16_d64_causal_128x64") {
        // The build carries a sample of the kernels.
        return check(&[&run[..], &[&outputs[0]]].concat(), 2, "bwd_");
    }
    for output in &outputs {
        let report = report(&[&run[..], &[output]].concat());
        assert_eq!(report["check"]["passed"], true, "{report}");
        let passes = ["bwd_delta_f16_d64", "bwd_dkdv_f16_d64_causal_128x64", "bwd_dq_f16_d64_causal_128x64"];
        assert_eq!(report["kernels"][1], serde_json::json!(passes), "in launch order");
        assert!(report["workspace_bytes"].as_u64().is_some_and(|bytes| bytes >= 8 * 384), "{report}");
    }
    let [first, second] = outputs.map(|output| std::fs::read(output).expect("written"));
    assert!(first == second, "equal bits");
    let file = SafeTensors::deserialize(&first).expect("safetensors");
    for name in ["o", "dq"] {
        assert_eq!(file.tensor(name).expect("there").shape(), q, "{name}");
    }
    assert!(["lse", "dk", "dv"].iter().all(|name| file.tensor(name).is_ok()));
    assert!(file.tensor("dsinks").is_err(), "no sinks");

    // With gradients of 60000, naive gradients are beyond f16, so that nothing proves an error.
    let beyond = write(&folder, "large.safetensors", &[d_o(|_| 0x7b53)]);
    let run = ["run", "--input", DEMO, "--grad", &beyond, "--causal", "--device", "sim", "--check"];
    let output = ferroflash(&run[..]).output().expect("starts");
    check_error(&output, 2, "cannot be judged: the tolerance rule has no bound");
    assert!(text(&output.stdout).contains("NOT JUDGED"), "the report comes nevertheless");

    // A NaN has a name.
    write(&folder, "large.safetensors", &[d_o(|i| if i == 5 { 0x7e00 } else { 0 })]);
    check_error(&ferroflash(&run[..]).output().expect("starts"), 2, "do has an infinity or a NaN");

    let run = ["run", "--input", DEMO, "--device", "sim", "--grad"];
    check(&[&run[..], &[&grad, "--output", &grad]].concat(), 2, "is the input file");
    // No row belongs to a sequence, so no gradient has an element to judge.
    let offsets = ["cu_seqlens_q", "cu_seqlens_k"].map(|name| (name, Dtype::I32, &[3][..]));
    let rows = ["q", "k", "v"].map(|name| (name, Dtype::F16, &[4, 2, 64][..]));
    let empty = zeros(&folder, "empty.safetensors", &[&offsets[..], &rows].concat());
    let d_o = zeros(&folder, "empty-do.safetensors", &[("do", Dtype::F16, &[4, 2, 64])]);
    let found = report(&["run", "--input", &empty, "--grad", &d_o, "--device", "sim", "--check"]);
    assert_eq!(found["check"]["passed"], true, "{found}");
}

/// A file of attention, and the options of the program.
struct OfFile {
    /// The queries and the keys of all sequences together.
    rows: [usize; 2],
    heads: [usize; 2],
    /// The columns of keys and of values.
    columns: [usize; 2],
    dtype: DType,
    options: &'static [&'static str],
    /// `cu_seqlens_q` and `cu_seqlens_k`, if the tensors are varlen.
    starts: Option<[&'static [i32]; 2]>,
    has_sinks: bool,
    /// The shape of a bias, whose gradient the options ask for.
    bias: Option<[usize; 4]>,
    /// The kernel of the backward pass that computes dK and dV.
    kernel: &'static str,
}

/// A causal problem of grouped heads.
const CAUSAL: OfFile = OfFile {
    rows: [70, 80],
    heads: [4, 2],
    columns: [64, 64],
    dtype: DType::F16,
    options: &["--profile", "l4", "--causal"],
    starts: None,
    has_sinks: false,
    bias: None,
    kernel: "bwd_dkdv_f16_d64_causal_128x64",
};

const HOPPER: &[&str] = &["--profile", "h200", "--causal"];

/// One sequence has no query, and the last rows belong to no sequence.
const STARTS: Option<[&[i32]; 2]> = Some([&[0, 33, 33, 66], &[0, 9, 20, 79]]);

const OF_FILES: [OfFile; 11] = [
    CAUSAL,
    OfFile { starts: STARTS, ..CAUSAL },
    OfFile {
        options: &["--profile", "l4", "--causal", "--bias-grad"],
        bias: Some([1, 4, 70, 80]),
        has_sinks: true,
        kernel: "bwd_dkdv_f16_d64_causal_bias",
        ..CAUSAL
    },
    OfFile {
        options: &["--profile", "l4", "--bias-grad"],
        bias: Some([3, 1, 33, 59]),
        starts: STARTS,
        kernel: "bwd_dkdv_f16_d64_full_bias",
        ..CAUSAL
    },
    OfFile {
        columns: [128, 128],
        options: &["--profile", "l4", "--window", "20,3"],
        dtype: DType::Bf16,
        has_sinks: true,
        kernel: "bwd_dkdv_bf16_d128_local",
        ..CAUSAL
    },
    OfFile { columns: [192, 128], kernel: "bwd_dkdv_f16_d192x128_causal", ..CAUSAL },
    OfFile { columns: [192, 128], starts: STARTS, kernel: "bwd_dkdv_f16_d192x128_causal", ..CAUSAL },
    OfFile {
        rows: [40, 30],
        columns: [256, 256],
        options: &["--profile", "l4"],
        kernel: "bwd_dkdv_f16_d256_full",
        ..CAUSAL
    },
    OfFile { options: HOPPER, kernel: "bwd_hopper_f16_d64_causal", ..CAUSAL },
    OfFile {
        options: HOPPER,
        columns: [128, 128],
        has_sinks: true,
        kernel: "bwd_hopper_f16_d128_causal",
        ..CAUSAL
    },
    OfFile { options: HOPPER, starts: STARTS, kernel: "bwd_hopper_packed_f16_d64_causal", ..CAUSAL },
];

impl OfFile {
    /// Returns the shapes of q, k, v and o in files.
    fn shapes(&self, problem: &Problem) -> [Vec<usize>; 4] {
        problem.shapes().map(|shape| shape[usize::from(self.starts.is_some())..].to_vec())
    }

    fn problem(&self) -> Problem {
        let ([queries, keys], [heads, heads_k], [columns, values]) = (self.rows, self.heads, self.columns);
        let problem = Problem::new(self.dtype, 1, queries, heads, columns).head_dim_v(values);
        problem.seqlen_k(keys).heads_k(heads_k)
    }

    /// Writes random tensors, and random gradients of the outputs. Returns the paths of both files.
    fn write(&self, folder: &Folder) -> [String; 2] {
        let problem = self.problem();
        let dtype = if self.dtype == DType::F16 { Dtype::F16 } else { Dtype::BF16 };
        let memory = Memory::random(problem, Layout::Bshd, 7);
        let [shapes @ .., o] = self.shapes(&problem);
        let (mut random, heads) = (Random::new(8), problem.heads_q);
        let mut drawn = |count: usize| (0..count).map(|_| random.normal() as f32).collect::<Vec<_>>();
        let [sinks, d_lse] = [drawn(heads), drawn(heads * problem.seqlen_q)];
        let normals = |name, seed, shape: &[usize]| {
            halves(name, dtype, shape, &Random::new(seed).normals(self.dtype, shape.iter().product()))
        };
        let inputs = ["q", "k", "v"].into_iter().zip(shapes).zip(&memory.buffers);
        let inputs = inputs.map(|((name, shape), bits)| halves(name, dtype, &shape, bits));
        let starts = ["cu_seqlens_q", "cu_seqlens_k"].into_iter().zip(self.starts.into_iter().flatten());
        let starts = starts.map(|(name, all)| integers(name, &[all.len()], all));
        let sinks = self.has_sinks.then(|| floats("sinks", &[heads], &sinks));
        let bias = self.bias.map(|shape| normals("bias", 6, &shape));
        let all: Vec<_> = inputs.chain(starts).chain(sinks).chain(bias).collect();
        let lse = &[1, heads, problem.seqlen_q][usize::from(self.starts.is_some())..];
        let upstream = [normals("do", 9, &o), floats("dlse", lse, &d_lse)];
        [write(folder, "qkv.safetensors", &all), write(folder, "do.safetensors", &upstream)]
    }

    /// Computes the gradients twice. Expects gradients within the tolerance of f64, and equal files.
    #[track_caller]
    fn check(&self) {
        let kind = if self.starts.is_some() { "varlen" } else { "dense" };
        let folder = Folder::new(&format!("{kind}-{}", self.kernel));
        let [input, grad] = self.write(&folder);
        let run = ["run", "--device", "sim", "--check", "--input", &input, "--grad", &grad];
        let run = [&run[..], self.options].concat();
        if !is_embedded("bwd_delta_f16_d64") {
            // The build carries a sample of the kernels.
            return check(&run, 2, "this build carries");
        }
        let outputs = ["first.safetensors", "second.safetensors"].map(|name| folder.path(name));
        for output in &outputs {
            let report = report(&[&run[..], &["--output", output]].concat());
            assert_eq!(report["check"]["passed"], true, "{report}");
            let kernel = report["kernels"][1][1].as_str().expect("a kernel of dK and dV");
            assert!(kernel.starts_with(self.kernel), "{kernel} instead of {}", self.kernel);
        }
        let [first, second] = outputs.map(|output| std::fs::read(output).expect("written"));
        assert!(first == second, "{}: equal bits", self.kernel);
        let file = SafeTensors::deserialize(&first).expect("safetensors");
        for (name, shape) in ["dq", "dk", "dv", "o"].into_iter().zip(self.shapes(&self.problem())) {
            assert_eq!(file.tensor(name).expect("there").shape(), shape, "{}: {name}", self.kernel);
        }
        assert_eq!(file.tensor("dsinks").is_ok(), self.has_sinks, "{}", self.kernel);
        let dbias = file.tensor("dbias").ok().map(|dbias| dbias.shape().to_vec());
        assert_eq!(dbias, self.bias.map(Vec::from), "{}", self.kernel);
    }
}

#[test]
fn gradients_of_files_are_exact_and_repeat() {
    OF_FILES.iter().for_each(OfFile::check);
}

#[test]
fn info_lists_the_kernels_of_gradients() {
    for (profile, kernels) in [
        ("l4", ["bwd_delta_f16_d64", "bwd_dkdv_f16_d64_causal_128x64", "bwd_dq_f16_d64_causal_128x64"]),
        ("h200", ["bwd_delta_f16_d64", "bwd_hopper_f16_d64_causal_128x128", "bwd_convert_dq_f16_d64"]),
    ] {
        let info = ["info", "--device", "sim", "--profile", profile];
        let report = report(&info);
        let all = report["would_run"].as_array().expect("a list");
        let is_asked = |choice: &&Value| choice["head_dim"] == 64 && choice["mask"] == "causal";
        let choice = all.iter().find(is_asked).expect("a mask of each head dim");
        assert_eq!(choice["gradients"]["kernels"], serde_json::json!(kernels), "{choice}");
        let output = ferroflash(&info).output().expect("starts");
        assert!(text(&output.stdout).contains(&kernels.join(", ")), "{profile}: as text, too");
    }
}
