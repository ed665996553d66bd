//! The example `ring` with two processes, on a fake CUDA driver and a fake NCCL (host/libcuda/fake). No
//! kernel runs: the test checks options, shapes, workspaces, messages between processes, and the report.
#![cfg(target_os = "linux")]
#[path = "../../host/tests/fake_cuda/library.rs"]
mod fake_cuda;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Once;

/// Returns the example. A test program alone does not build it, so an old one may lie there. `cargo xtask
/// test` has built it with the features of the other tests, and sets an environment variable.
fn example() -> PathBuf {
    static BUILT: Once = Once::new();
    let own = std::env::current_exe().expect("this test has a path");
    let profile = own.ancestors().nth(2).expect("a folder of the profile");
    BUILT.call_once(|| {
        if std::env::var_os("FERROFLASH_EXAMPLES_BUILT").is_some() {
            return;
        }
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--offline", "--example", "ring", "--target-dir"]);
        let target = profile.parent().expect("a target folder");
        let built = build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
        assert!(built.success(), "{build:?}");
    });
    profile.join("examples/ring")
}

fn run(options: &str) -> (bool, String, String) {
    let mut command = Command::new(example());
    command.args(options.split_whitespace()).env("LD_LIBRARY_PATH", fake_cuda::folder());
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.success(), text(stdout), text(stderr))
}

/// Returns the number behind a field's name in a JSON line.
fn number(line: &str, field: &str) -> f64 {
    let value = line.split(&format!("\"{field}\": ")).nth(1).unwrap_or_else(|| panic!("{field} in {line}"));
    let end = value.find([',', '}']).unwrap_or(value.len());
    value[..end].trim().parse().unwrap_or_else(|error| panic!("{field} in {line}: {error}"))
}

/// The command of docs/several-gpus.md, with short sequences. Every form and pass has a line of each rank,
/// and sends the bytes of the model.
#[test]
fn the_measurement_runs_on_two_ranks() {
    let (is_success, lines, errors) =
        run("--gpus 2 --checks none --tokens 512,1024 --sequences 1,4 --keys 4096 --rounds 1");
    assert!(is_success && errors.is_empty(), "{lines}{errors}");
    let of = |name: &str, rank: usize| {
        let rank = format!("\"rank\": {rank},");
        lines.lines().filter(|line| line.contains(name) && line.contains(&rank)).collect::<Vec<_>>()
    };
    for rank in 0..2 {
        assert_eq!(of("\"state\": ", rank).len(), 2, "{lines}");
        assert_eq!(of("\"decode\": 4096", rank).len(), 1, "{lines}");
        for (form, pass) in ["Ring", "Gather", "Ulysses"]
            .into_iter()
            .flat_map(|form| ["\"forward\"", "\"forward and backward\""].map(|pass| (form, pass)))
        {
            let name = format!("\"form\": \"{form}\", \"pass\": {pass}");
            let found = of(&name, rank);
            assert_eq!(found.len(), 4, "{name}: {lines}");
            for line in found {
                let rows = number(line, "positions") / 2.0;
                // Two bytes per element, 32 heads on 8 of 128 columns, one other rank.
                let tensor = |heads: f64| rows * heads * 128.0 * 2.0;
                let forward = match form {
                    "Ulysses" => (tensor(32.0) + tensor(8.0)) + rows * 32.0 * 2.0,
                    _ => 2.0 * tensor(8.0),
                };
                let sent = number(line, "bytes_sent");
                let is_right = match pass {
                    "\"forward\"" => sent == forward,
                    // The backward pass sends at most twice the bytes of a forward, and Ulysses its LSE.
                    _ => sent > forward && sent <= 3.5 * forward,
                };
                assert!(is_right, "{line}: a forward sends {forward}");
            }
        }
    }
}

/// A rank that ends in the middle of its work ends the other one with an error, in seconds.
#[test]
fn a_lost_process_ends_the_other() {
    // The time does not count what is built.
    let (_program, _driver) = (example(), fake_cuda::folder());
    let begun = std::time::Instant::now();
    let (_, lines, errors) = run("--gpus 2 --forms ring --checks first --tokens 512 --rounds 1 --lose 1");
    let line =
        lines.lines().find(|line| line.contains("\"lost\": 1")).unwrap_or_else(|| panic!("{lines}{errors}"));
    // The seconds are also those of the numbers of a check, which an unoptimised program makes slowly.
    assert!(line.contains("ncclRemoteError") && number(line, "seconds") < 60.0, "{line}");
    assert!(begun.elapsed().as_secs() < 240, "{:?}", begun.elapsed());
}

/// Wrong options are errors that name the option, before a process starts.
#[test]
fn wrong_options_are_refused_by_name() {
    for (options, name) in [
        ("--gpus", "--gpus needs a value"),
        ("--forms star", "form star"),
        ("--token 5", "unknown option --token"),
        ("--gpus 0", "--gpus 0"),
        ("--tokens 12x", "--tokens 12x"),
        ("--rounds 0", "--rounds 0"),
        ("--checks some", "--checks some"),
        ("--sequences 0", "--sequences 0"),
        ("--lose 2", "--lose 2"),
        ("--gpus 3", "--gpus 3"),
    ] {
        let (is_success, lines, errors) = run(options);
        assert!(!is_success && errors.contains(name), "{options}: {lines}{errors}");
    }
}
