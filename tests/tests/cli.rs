//! The command line: results, every exit code, and every error on one line.
mod folder;

use ferroflash::reference::{HostTensor, Layout, Memory, exact};
use ferroflash::{Alignment, DType, Mask, MaskKind, Problem};
use folder::Folder;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Writes tensors of zeros.
fn zeros(folder: &Folder, name: &str, tensors: &[(&str, Dtype, &[usize])]) -> String {
    let bytes = |dtype: Dtype, shape: &[usize]| vec![0u8; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let data: Vec<_> = tensors.iter().map(|(_, dtype, shape)| bytes(*dtype, shape)).collect();
    let views = tensors.iter().zip(&data).map(|((name, dtype, shape), data)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), data).expect("as many bytes as the shape needs"))
    });
    let path = folder.path(name);
    safetensors::serialize_to_file(views, None, path.as_ref()).expect("written");
    path
}

fn ferroflash(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflash-under-test"));
    command.args(args);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Runs and expects success; returns the JSON report.
#[track_caller]
fn report(args: &[&str]) -> Value {
    let output = ferroflash(args).arg("--json").output().expect("starts");
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// Expects `output` to be an error of exit code `code` on one line that holds `message`.
#[track_caller]
fn check_error(output: &Output, code: i32, message: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let line = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(line.contains(message), "`{message}` should be in: {stderr}");
    assert_eq!(stderr.lines().filter(|line| !line.starts_with("no GPU (")).count(), 1, "one line: {stderr}");
}

#[track_caller]
fn check(args: &[&str], code: i32, message: &str) {
    let output = ferroflash(args).output().expect("starts");
    check_error(&output, code, message);
    assert_eq!(text(&output.stdout), "", "nothing is reported");
    let output = ferroflash(args).arg("--json").output().expect("starts");
    check_error(&output, code, message);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["exit_code"], code);
    assert!(report["error"].as_str().is_some_and(|error| error.contains(message)), "{report}");
}

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/qkv.safetensors");

#[test]
fn demo_verifies_its_result_and_says_where_it_ran() {
    let report = report(&["demo"]);
    assert_eq!(report["check"]["passed"], true);
    assert!(report["check"]["max_error"].as_f64().expect("a number") > 0.0, "{report}");
    assert!(!report["device"].as_str().expect("in words").is_empty());
    let output = ferroflash(&["demo", "--device", "cpu"]).output().expect("starts");
    assert!(text(&output.stdout).contains("on the CPU (f64 reference)"));
    assert!(text(&output.stdout).contains("equal to the reference"));
}

#[test]
fn the_demo_file_is_the_demo_input() {
    let folder = Folder::new("demo-file");
    let path = folder.path("qkv.safetensors");
    report(&["demo", "--device", "cpu", "--save-input", &path]);
    let [written, committed] = [path.as_ref(), Path::new(DEMO)].map(|path| std::fs::read(path).expect("readable"));
    assert!(written == committed, "`ferroflash demo --save-input demo/qkv.safetensors` makes the file");
    assert!(committed.len() < 200_000);
}

/// Writes a file, runs it on the CPU, and expects the reference, bit by bit.
#[track_caller]
fn check_round_trip(name: &str, problem: Problem, layout: Layout, options: &[&str]) {
    let folder = Folder::new(name);
    let memory = Memory::random(problem, layout, 5);
    let order = |[b, s, h, d]: [usize; 4]| if layout == Layout::Bhsd { [b, h, s, d] } else { [b, s, h, d] };
    let dtype = if problem.dtype == DType::F16 { Dtype::F16 } else { Dtype::BF16 };
    let bytes: Vec<Vec<u8>> =
        memory.buffers.iter().map(|bits| bits.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = [("q", memory.q), ("k", memory.k), ("v", memory.v)].map(|(name, place)| {
        (name, TensorView::new(dtype, order(place.shape).to_vec(), &bytes[place.buffer]).expect("fits"))
    });
    let [input, output] = ["qkv.safetensors", "o.safetensors"].map(|name| folder.path(name));
    safetensors::serialize_to_file(views, None, input.as_ref()).expect("written");

    let run = ["run", "--device", "cpu", "--check", "--input", &input, "--output", &output];
    let report = report(&[&run[..], options].concat());
    assert_eq!(report["check"]["passed"], true, "{report}");

    let want = exact(&memory.inputs().expect("valid"));
    let file = std::fs::read(&output).expect("written");
    let file = SafeTensors::deserialize(&file).expect("safetensors");
    let (o, lse) = (file.tensor("o").expect("there"), file.tensor("lse").expect("there"));
    assert_eq!((o.dtype(), o.shape()), (dtype, &order(memory.o.shape)[..]));
    let o: Vec<_> = o.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    let o = HostTensor::new(&o, 0, problem.dtype, memory.o.shape, memory.o.strides).expect("fits");
    let want_bits = want.out_bits(problem.dtype);
    let want_o = HostTensor::bshd(&want_bits, problem.dtype, memory.o.shape).expect("fits");
    let [batches, rows, heads, _] = memory.o.shape;
    for (b, s, h) in (0..batches).flat_map(|b| (0..rows).flat_map(move |s| (0..heads).map(move |h| (b, s, h)))) {
        assert_eq!(o.row(b, s, h), want_o.row(b, s, h), "batch {b}, row {s}, head {h}");
    }
    assert_eq!((lse.dtype(), lse.shape()), (Dtype::F32, &[batches, heads, rows][..]));
    let lse: Vec<_> = lse.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let want_lse: Vec<_> = want.lse.iter().map(|x| *x as f32).collect();
    assert_eq!(lse, want_lse);
}

#[test]
fn files_go_round() {
    let grouped = Problem { heads_q: 6, seqlen_q: 9, ..Problem::new(DType::F16, 2, 14, 2, 24) };
    check_round_trip("bshd", grouped, Layout::Bshd, &[]);
    let causal = Problem { mask: Mask::Causal, ..grouped };
    check_round_trip("bhsd", causal, Layout::Bhsd, &["--layout", "bhsd", "--causal"]);
    let top_left = Problem { alignment: Alignment::TopLeft, dtype: DType::Bf16, ..causal };
    check_round_trip("top-left", top_left, Layout::Bshd, &["--causal", "--top-left"]);
    let window =
        Problem { mask: Mask::Window { left: Some(3), right: None }, scale: Some(0.7), softcap: Some(2.5), ..grouped };
    check_round_trip("window", window, Layout::Bshd, &["--window", "3,-1", "--scale", "0.7", "--softcap", "2.5"]);
    let unseen = Problem { seqlen_q: 20, ..causal };
    check_round_trip("unseen", unseen, Layout::Bshd, &["--causal", "--softcap", "0"]);
}

#[test]
fn files_that_are_not_valid() {
    let folder = Folder::new("files");
    let (f16, bf16, f32) = (Dtype::F16, Dtype::BF16, Dtype::F32);
    let shape: &[usize] = &[1, 8, 4, 64];
    let run = |path: &str, message: &str| check(&["run", "--device", "cpu", "--input", path], 2, message);
    type Tensor<'a> = (Dtype, &'a [usize]);
    let qkv = |name: &str, q: Tensor, k: Tensor, v: Tensor| {
        zeros(&folder, name, &[("q", q.0, q.1), ("k", k.0, k.1), ("v", v.0, v.1)])
    };
    run(&folder.path("missing"), "cannot be read");
    run(&folder.write("text", "not safetensors"), "is not a safetensors file");
    run(
        &zeros(&folder, "no-v", &[("q", f16, shape), ("k", f16, shape), ("extra", f16, shape)]),
        "has no tensor `v`, only [extra, k, q]",
    );
    run(&qkv("f32", (f16, shape), (f16, shape), (f32, shape)), "`v` is F32; convert it to F16 or BF16");
    run(&qkv("mixed", (f16, shape), (f16, shape), (bf16, shape)), "`v` is bf16, `q` is f16");
    run(
        &qkv("flat", (f16, &[8, 4, 64]), (f16, shape), (f16, shape)),
        "`q` has shape [8, 4, 64]; four sizes are needed",
    );
    run(&qkv("batch", (f16, &[2, 8, 4, 64]), (f16, shape), (f16, shape)), "do not belong together");
    run(&qkv("v", (f16, shape), (f16, shape), (f16, &[1, 9, 4, 64])), "v must be shaped like k");
    run(
        &qkv("heads", (f16, &[1, 8, 6, 64]), (f16, shape), (f16, shape)),
        "invalid heads_q: 6; it must be a multiple of heads_k = 4",
    );
    let empty: &[usize] = &[1, 0, 4, 64];
    run(&qkv("empty", (f16, empty), (f16, shape), (f16, shape)), "1 or more");
    // Rows of 60 elements are not 16-byte aligned.
    let narrow: &[usize] = &[1, 8, 4, 60];
    run(
        &qkv("narrow", (f16, narrow), (f16, narrow), (f16, narrow)),
        "not supported: head_dim 60: kernels take multiples of 8",
    );
    let wide: &[usize] = &[1, 8, 1, 264];
    run(&qkv("wide", (f16, wide), (f16, wide), (f16, wide)), "not supported: head_dim 264");
    let output = folder.path("no/such/folder/o.safetensors");
    check(&["run", "--device", "cpu", "--input", DEMO, "--output", &output], 2, "cannot be written");
}

#[test]
fn options_that_are_not_valid() {
    let run = |options: &[&str], message: &str| {
        check(&[&["run", "--device", "cpu", "--input", DEMO], options].concat(), 2, message);
    };
    run(&["--scale", "inf"], "invalid scale: inf; it must be a finite number above 0");
    run(&["--scale", "NaN"], "invalid scale: NaN");
    run(&["--scale", "-1"], "not supported: scale -1: ");
    run(&["--scale", "1e-45"], "normal f32");
    run(&["--scale", "x"], "invalid value 'x' for '--scale");
    run(&["--softcap", "NaN"], "invalid softcap: NaN");
    run(&["--softcap", "-2"], "invalid softcap: -2; it must be a finite number above 0");
    run(&["--window", "3"], "two numbers like 255,0");
    run(&["--window", "3,0", "--causal"], "cannot be used with");
    run(&["--layout", "sbhd"], "possible values: bshd, bhsd");
    run(&["--profile", "t4"], "it must be one of l4, a100");
    run(&["--profile", "l4"], "--profile l4 is a card that the simulator stands for; use --device sim");
    run(&["--device", "gpu"], "'--device <DEVICE>' cannot be used multiple times");
    run(&["--config", "fwd_f16_d64"], "invalid config: fwd_f16_d64; it must be the name of an entry");
    run(&["--config", ferroflash::ENTRIES[0].symbol], "the CPU runs the reference and no kernel");
    check(&["run"], 2, "--input <INPUT>");
    check(&["run", "--input", DEMO, "--device", "tpu"], 2, "possible values: auto, gpu, sim, cpu");
    check(&["walk"], 2, "unrecognized subcommand 'walk'");
    check(
        &["verify", "--config", "none"],
        2,
        "invalid config: none; it must be the name of an entry or of a configuration of the lineage",
    );
    check(&["verify", "--soak", "-1"], 2, "unexpected argument '-1'");
    check(&["kernels", "--head-dim", "300"], 2, "no kernel is like that");
    check(&["kernels", "--dtype", "f32"], 2, "it must be f16 or bf16");
    check(&["bench", "--device", "sim"], 2, "a simulator has none; use --device gpu");
    check(&["bench", "--first-call", "--device", "cpu"], 2, "bench measures time");
    check(&["bench", "--suite", "decode"], 2, "no suite is called `decode`, only extra, headline, prefill");
    check(&["bench", "--against", DEMO], 2, "cannot be read");
    check(&["bench", "--file", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], 2, "it must be like {\"mine\"");
    check(&["bench", "--first-call", "--svg", "plot.svg"], 2, "cannot be used with");
    check(&["bench", "--rounds", "0"], 2, "0 is not in 1..=255");
    check(&["agree", "--products", "0"], 2, "0 is not in 1..");
    check(&["fuzz", "--seconds", "0"], 2, "0 is not in 1..");
}

#[test]
fn verify_reports_every_case() {
    let entry = &ferroflash::ENTRIES[0];
    let report =
        report(&["verify", "--quick", "--device", "sim", "--config", entry.symbol, "--soak", "2", "--seed", "7"]);
    assert_eq!((&report["passed"], &report["seed"], &report["grid"]), (&true.into(), &7.into(), &"quick".into()));
    let rows = report["kernels"].as_array().expect("a list");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["cases"], ferroflash::reference::edges(entry, 7).len());
    let ratio = rows[0]["worst_ratio"].as_f64().expect("a number");
    assert!(ratio > 0.0 && ratio <= 1.0, "{report}");
}

/// Two entries that differ in the mask alone.
fn full_and_causal() -> [&'static ferroflash::EntryInfo; 2] {
    let of = |kind| ferroflash::ENTRIES.iter().filter(move |e| e.mask == kind);
    let shape = |e: &ferroflash::EntryInfo| (e.dtype, e.head_dim, e.tile_m, e.tile_n, e.threads, e.smem_bytes);
    let pairs = of(MaskKind::Full).flat_map(|a| of(MaskKind::Causal).map(move |b| [a, b]));
    pairs.into_iter().find(|[a, b]| shape(a) == shape(b)).expect("the table has such a pair")
}

#[test]
fn wrong_and_broken_kernels() {
    let [full, causal] = full_and_causal();
    let folder = Folder::new("kernels");
    let with = |ptx: &str, args: &[&str]| {
        folder.write(&format!("{}.ptx", causal.symbol), ptx);
        ferroflash(args).env("FERROFLASH_PTX_DIR", &folder.0).output().expect("starts")
    };
    let verify = ["verify", "--quick", "--device", "sim", "--config", causal.symbol];
    // The full kernel under the causal one's name: nothing that a checker could find, only wrong numbers.
    let swapped = ferroflash::ptx::source(full.symbol).expect("carried").replace(full.symbol, causal.symbol);
    let output = with(&swapped, &verify);
    check_error(&output, 1, "off by ");
    assert!(text(&output.stdout).contains("  WRONG f16 batch 1"), "the report lists what is wrong");
    let output = with(&swapped, &[&verify[..], &["--json"]].concat());
    let report: Value =
        serde_json::from_slice(&output.stdout).expect("one JSON document, with the error in the report");
    assert_eq!((&report["passed"], &report["exit_code"]), (&false.into(), &1.into()));
    assert!(report["error"].as_str().is_some_and(|error| error.contains("off by ")), "{report}");
    check_error(&with(".version 7.8\nnonsense", &verify), 4, "parse PTX: ");
}

#[test]
fn verify_needs_kernels() {
    check(&["verify", "--device", "cpu"], 3, "verify runs kernels");
}

#[test]
#[cfg(target_os = "linux")]
fn no_driver() {
    // Files that are no libraries, found before any driver of this machine.
    let folder = Folder::new("no-driver");
    for name in ["libcuda.so", "libcuda.so.1"] {
        folder.write(name, "");
    }
    let without = |args: &[&str]| ferroflash(args).env("LD_LIBRARY_PATH", &folder.0).output().expect("starts");
    check_error(&without(&["run", "--device", "gpu", "--input", DEMO]), 3, "no CUDA driver");
    check_error(&without(&["bench", "--suite", "headline"]), 3, "no CUDA driver");
    check_error(&without(&["bench", "--first-call"]), 3, "no CUDA driver");
    let output = without(&["run", "--device", "auto", "--input", DEMO, "--check", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("no GPU ("), "it says that it uses something else");
    let info = without(&["info", "--json"]);
    let info: Value = serde_json::from_slice(&info.stdout).expect("one JSON document");
    assert_eq!(info["gpu"], Value::Null);
    assert!(info["no_gpu"].as_str().is_some_and(|reason| reason.contains("no CUDA driver")), "{info}");
}

#[test]
fn kernels_are_the_table() {
    let report = report(&["kernels"]);
    let rows = report["kernels"].as_array().expect("a list");
    assert_eq!(rows.len(), ferroflash::ENTRIES.len());
    for (row, entry) in rows.iter().zip(ferroflash::ENTRIES) {
        assert_eq!(row["name"], entry.symbol);
        assert_eq!(row["dtype"], entry.dtype.name());
        assert_eq!(row["threads"], entry.threads);
        assert_eq!(row["shared_memory_bytes"], entry.smem_bytes);
    }
    let output = ferroflash(&["kernels", "--mask", "causal", "--head-dim", "80"]).output().expect("starts");
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    let expected = ferroflash::ENTRIES.iter().filter(|e| e.head_dim == 96 && e.mask.name() == "causal").count();
    assert_eq!(lines.iter().filter(|line| line.starts_with("fwd_") && line.contains("d96_causal")).count(), expected);
    assert_eq!(lines.len(), expected + 2, "a head line, the kernels, a sum: {lines:?}");
}

#[test]
fn a_reader_who_leaves_early_is_no_failure() -> std::io::Result<()> {
    for args in [&["kernels"][..], &["kernels", "--json"], &["--help"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = ferroflash(args).stdout(writer).output()?;
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
    // An error that nobody reads has its exit code all the same.
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    assert_eq!(ferroflash(&["kernels", "--head-dim", "300"]).stderr(writer).status()?.code(), Some(2));
    Ok(())
}

#[test]
fn fuzz_counts_what_it_judged() {
    let report = report(&["fuzz", "--device", "sim", "--case", "3"]);
    assert_eq!((&report["passed"], &report["solved"]), (&true.into(), &1.into()));
    assert!(report["small"].as_u64().is_some_and(|small| small <= 1), "{report}");
    assert!(report["small_rule"].as_str().is_some_and(|rule| rule.contains("16384")), "{report}");
}

#[test]
fn agree_compares_kernels_and_products() {
    let entry = ferroflash::ENTRIES[0].symbol;
    let report = report(&["agree", "--device", "sim", "--profile", "h200", "--products", "60", "--config", entry]);
    assert_eq!(report["agree"], true);
    assert_eq!(report["kernels"][0]["differing"], 0, "the simulator is the same twice");
    assert!(report["kernels"][0]["words"].as_u64().is_some_and(|words| words > 0));
    assert_eq!(report["products"].as_array().map(Vec::len), Some(2), "f16 and bf16");
    check(&["agree", "--device", "cpu"], 2, "use --device gpu");
}

#[test]
fn help_teaches() {
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["verify", "--help"],
        &["sanitize", "--help"],
        &["agree", "--help"],
        &["soak", "--help"],
        &["fuzz", "--help"],
        &["sweep", "--help"],
        &["kernels", "--help"],
        &["info", "--help"],
        &["demo", "--help"],
        &["bench", "--help"],
    ] {
        let output = ferroflash(command).output().expect("starts");
        let help = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty());
        assert!(help.contains("  ferroflash "), "{command:?} shows examples");
        assert!(help.contains("--json"), "{command:?}");
    }
    let output = ferroflash(&[]).output().expect("starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Start here:"));
    let help = ferroflash(&["--help"]).output().expect("starts");
    for code in 0..=4 {
        assert!(text(&help.stdout).contains(&format!("\n  {code}  ")), "exit code {code} is documented");
    }
}
