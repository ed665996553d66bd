//! Reading tensors from files and writing them.
use crate::common::{DEMO, Folder, check, check_error, ferroflash, report, text};
use crate::tensors::{halves, numbers, read, write, zeros};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};
use reference::{HostTensor, Layout, Memory, exact};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

#[test]
fn the_demo_file_is_the_demo_input() {
    let folder = Folder::new("demo-file");
    let path = folder.path("qkv.safetensors");
    report(&["demo", "--device", "cpu", "--save-input", &path]);
    let [written, committed] =
        [path.as_ref(), Path::new(DEMO)].map(|path| std::fs::read(path).expect("readable"));
    assert!(written == committed, "`ferroflash demo --save-input demo/qkv.safetensors` makes the file");
    assert!(committed.len() < 200_000);
}

/// Writes a file, runs it on the CPU, and expects the bits of the reference.
#[track_caller]
fn check_round_trip(name: &str, problem: Problem, layout: Layout, options: &[&str]) {
    let folder = Folder::new(name);
    let memory = Memory::random(problem, layout, 5);
    let order = |[b, s, h, d]: [usize; 4]| if layout == Layout::Bhsd { [b, h, s, d] } else { [b, s, h, d] };
    let dtype = if problem.dtype == DType::F16 { Dtype::F16 } else { Dtype::BF16 };
    let inputs = [("q", memory.q), ("k", memory.k), ("v", memory.v)];
    let inputs =
        inputs.map(|(name, place)| halves(name, dtype, &order(place.shape), &memory.buffers[place.buffer]));
    let (input, output) = (write(&folder, "qkv.safetensors", &inputs), folder.path("o.safetensors"));

    let run = ["run", "--device", "cpu", "--input", &input, "--output", &output];
    let report = report(&[&run[..], options].concat());
    assert!(report["check"].is_null(), "{report}");

    let want = exact(&memory.inputs().expect("valid"));
    let [o, lse] = ["o", "lse"].map(|name| read(&output, name).expect("there"));
    assert_eq!((o.0, &o.1[..]), (dtype, &order(memory.o.shape)[..]));
    let o: Vec<_> = o.2.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
    let o = HostTensor::new(&o, 0, problem.dtype, memory.o.shape, memory.o.strides).expect("fits");
    let want_bits = want.out_bits(problem.dtype);
    let want_o = HostTensor::bshd(&want_bits, problem.dtype, memory.o.shape).expect("fits");
    let [batches, rows, heads, _] = memory.o.shape;
    for (b, s, h) in
        (0..batches).flat_map(|b| (0..rows).flat_map(move |s| (0..heads).map(move |h| (b, s, h))))
    {
        assert_eq!(o.row(b, s, h), want_o.row(b, s, h), "batch {b}, row {s}, head {h}");
    }
    assert_eq!((lse.0, lse.1), (Dtype::F32, vec![batches, heads, rows]));
    let want_lse: Vec<_> = want.lse.iter().map(|x| *x as f32).collect();
    assert_eq!(numbers(&lse.2), want_lse);
}

#[test]
fn files_go_round() {
    let grouped = Problem::new(DType::F16, 2, 14, 2, 24).heads_q(6).seqlen_q(9);
    check_round_trip("bshd", grouped, Layout::Bshd, &[]);
    let causal = grouped.mask(Mask::Causal);
    check_round_trip("bhsd", causal, Layout::Bhsd, &["--layout", "bhsd", "--causal"]);
    let top_left = causal.alignment(Alignment::TopLeft).dtype(DType::Bf16);
    check_round_trip("top-left", top_left, Layout::Bshd, &["--causal", "--top-left"]);
    let window = grouped.mask(Mask::Window { left: Some(3), right: None }).scale(0.7).softcap(2.5);
    check_round_trip(
        "window",
        window,
        Layout::Bshd,
        &["--window", "3,-1", "--scale", "0.7", "--softcap", "2.5"],
    );
    let unseen = causal.seqlen_q(20);
    check_round_trip("unseen", unseen, Layout::Bshd, &["--causal", "--softcap", "0"]);
}

#[test]
fn the_largest_scores_are_written_and_checked() {
    let folder = Folder::new("max-logits");
    let output = folder.path("o.safetensors");
    let floats = |name| numbers(&read(&output, name).expect("there").2);
    let run = ["run", "--input", DEMO, "--causal", "--max-logits", "--output", &output, "--device"];
    report(&[&run[..], &["cpu"]].concat());
    let exact = floats("max_logits");
    let done = report(&[&run[..], &["sim", "--profile", "h200", "--check"]].concat());
    assert!(done["kernel"].as_str().is_some_and(|kernel| kernel.starts_with("fwd_")), "{done}");
    assert!(done["check"]["max_logits_max_error"].as_f64().is_some_and(|error| error < 1e-4), "{done}");
    let (got, lse) = (floats("max_logits"), floats("lse"));
    assert!(got.iter().zip(&exact).all(|(got, exact)| (got - exact).abs() < 1e-4), "{got:?} for {exact:?}");
    assert!(got.iter().zip(&lse).all(|(max, lse)| max <= lse), "a sum has every score");
    let (shape, heads) = (read(&output, "max_logits").expect("there").1, floats("max_logits_head"));
    let of_head = |head| got.chunks(shape[2]).skip(head).step_by(shape[1]).flatten().copied();
    let largest: Vec<_> = (0..shape[1]).map(|head| of_head(head).fold(f32::NEG_INFINITY, f32::max)).collect();
    assert_eq!(heads, largest);
}

#[test]
fn an_output_is_written_whole_and_never_over_the_input() {
    let folder = Folder::new("output");
    let input = folder.path("qkv.safetensors");
    std::fs::copy(DEMO, &input).expect("copied");
    let run = ["run", "--device", "cpu", "--input", &input, "--output"];
    for name in ["qkv.safetensors", "./qkv.safetensors"] {
        check(&[&run[..], &[&folder.path(name)]].concat(), 2, "name another file");
    }
    let bytes = |path: &str| std::fs::read(path).expect("there");
    assert!(bytes(&input) == bytes(DEMO), "the input is as it was");
    let output = folder.write("o.safetensors", "something older");
    let done = report(&[&run[..], &[&output]].concat());
    assert!(SafeTensors::deserialize(&bytes(&output)).is_ok());
    let took = &done["milliseconds"];
    assert!(took["kernel"].is_null() && took["cpu"].as_f64().is_some_and(|ms| ms > 0.0), "{done}");
    let [simulated, words] = [&["--json"][..], &[]].map(|more| {
        let run = ["run", "--device", "sim", "--input", &input];
        ferroflash(&[&run[..], more].concat()).output().expect("starts").stdout
    });
    let simulated: serde_json::Value = serde_json::from_slice(&simulated).expect("one JSON document");
    let took = &simulated["milliseconds"];
    assert!(took["kernel"].is_null() && took["cpu"].as_f64().is_some_and(|ms| ms > 0.0), "{simulated}");
    let (words, reason) = (text(&words), simulated["reason"].as_str().expect("a reason"));
    assert!(
        words.contains(&format!("why this kernel: {reason}")) && words.contains(" s on this CPU"),
        "{words}"
    );
    let left = std::fs::read_dir(&folder.0).expect("there").flatten().map(|entry| entry.file_name());
    assert_eq!(left.count(), 2, "no part of a file stays");
}

/// A device file has no end, and its first bytes are not a header.
#[test]
#[cfg(target_os = "linux")]
fn devices_are_not_read_for_ever() {
    for path in ["/dev/zero", "/dev/urandom", "/dev/null"] {
        check(&["run", "--input", path], 2, &format!("{path}: is not a safetensors file"));
    }
}

#[test]
fn inputs_that_no_rule_can_judge() {
    let folder = Folder::new("unbounded");
    let write = |name: &str, tensors: &[&'static str], bits: u16| {
        let all = tensors.iter().map(|name| halves(name, Dtype::F16, &[1, 8, 1, 64], &[bits; 8 * 64]));
        write(&folder, name, &all.collect::<Vec<_>>())
    };
    let grad = write("do.safetensors", &["do"], 0x3c00);
    let with_grad = ferroflash::ptx::is_embedded("bwd_dkdv_f16_d64_full_128x64");
    // Squares of 2^15 overflow f16, so every naive score is infinite; and NaN.
    for bits in [0x7800, 0x7e00] {
        let path = write("qkv.safetensors", &["q", "k", "v"], bits);
        for more in [&[][..], &["--grad", &grad]].into_iter().take(1 + usize::from(with_grad)) {
            let words = ["run", "--device", "sim", "--check", "--input", &path];
            let output = ferroflash(&[&words[..], more].concat()).output().expect("starts");
            let why = "--check: o cannot be judged: the tolerance rule has no bound for these inputs";
            check_error(&output, 2, why);
            assert!(text(&output.stdout).contains("NOT JUDGED"), "the report comes nevertheless");
        }
    }
}

/// A file with results is also a valid input. A merge kernel would add sinks in a workspace.
/// The reference needs none.
#[test]
fn files_with_more_than_inputs() {
    let (folder, shape) = (Folder::new("more"), &[2, 8, 4, 64][..]);
    let inputs = ["q", "k", "v"].map(|name| (name, Dtype::F16, shape));
    for more in [
        &[("o", Dtype::F16, shape), ("lse", Dtype::F32, &[2, 4, 8][..])][..],
        &[("sinks", Dtype::F32, &[4][..])],
    ] {
        let file = zeros(&folder, "qkv.safetensors", &[&inputs[..], more].concat());
        report(&["run", "--device", "cpu", "--input", &file]);
    }
}
