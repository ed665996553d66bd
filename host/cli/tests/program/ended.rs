//! Tests commands that a signal ends before they have done everything.
use crate::common::{ferroflash, text};
use serde_json::Value;
use std::fs::DirEntry;
use std::process::{Child, Output, Stdio};
use std::time::Duration;
use std::{fs, io, thread};

/// Waits until a process receives signals: until its thread of this name runs. The handlers alone, which are
/// older, do not suffice.
fn listens(child: &mut Child) {
    let threads = format!("/proc/{}/task", child.id());
    let is_it = |thread: io::Result<DirEntry>| {
        // A thread may end before its name is read.
        thread.and_then(|thread| fs::read(thread.path().join("comm"))).is_ok_and(|name| name == b"signals\n")
    };
    while !fs::read_dir(&threads).expect("its threads").any(is_it) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a command, ends it by SIGTERM some time after it began to listen, and returns its output.
fn output_after(time: Duration, args: &[&str]) -> Output {
    let mut command = ferroflash(args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    listens(&mut child);
    thread::sleep(time);
    // SAFETY: the call takes two numbers, and nothing has waited for the child yet.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    output
}

/// Ends a command before it has done everything, and returns its output.
fn output(args: &[&str]) -> Output {
    output_after(Duration::ZERO, args)
}

/// Ends a command that prints JSON some time after it began to listen, and returns its report.
fn end_after(time: Duration, args: &[&str]) -> Value {
    let output = output_after(time, &[args, &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["exit_code"], 5);
    let why = ": a signal ended the command; ";
    assert!(report["error"].as_str().is_some_and(|error| error.contains(why)), "{report}");
    report
}

/// Ends a command that prints JSON, and returns its report.
fn end(args: &[&str]) -> Value {
    end_after(Duration::ZERO, args)
}

/// The program carries all kernels, so no command finishes before the signal comes.
#[test]
fn what_was_done_is_reported() {
    let sim = ["--device", "sim"];
    let report = end(&[&["verify", "--quick"], &sim[..]].concat());
    assert!(
        report["kernels"]
            .as_array()
            .is_some_and(|rows| rows.iter().any(|row| row["left"].as_u64() > Some(0)))
    );
    let report = end(&[&["verify", "--quick", "--jobs", "2"], &sim[..]].concat());
    assert!(report["kernels"].as_array().is_some_and(|rows| rows.len() == reference::subjects().count()));
    let report = end(&[&["sanitize"], &sim[..]].concat());
    assert!(
        report["kernels"]
            .as_array()
            .is_some_and(|rows| rows.iter().any(|row| row["left"].as_u64() > Some(0)))
    );
    let report = end(&[&["soak", "--launches", "2"], &sim[..]].concat());
    assert!(report["kernels"].is_array());
}

/// The signal may come before or after the first problem.
#[test]
fn a_fuzz_run_that_was_ended_says_so() {
    let report = end(&["fuzz", "--seconds", "600", "--device", "sim"]);
    assert_eq!(report["passed"], false, "{report}");
    let solved = format!("{} problems were solved: ", report["solved"]);
    assert!(report["error"].as_str().is_some_and(|error| error.starts_with(&solved)), "{report}");
}

/// A round of this soak takes hours. On a stalled machine, the signal may come before the first launch.
#[test]
fn a_soak_ends_within_its_round() {
    let soak = ["soak", "--launches", "1000000", "--config", "merge_f16", "--device", "sim"];
    let report = end_after(Duration::from_secs(1), &soak);
    let row = &report["kernels"][0];
    assert_eq!(row["rounds"], 0, "{report}");
    assert!(row["launches"].as_u64().is_some_and(|launches| launches < 1_000_000), "{report}");
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds < 60.0), "{report}");
}

const COMMANDS: [&[&str]; 4] = [
    &["verify", "--quick"],
    &["sanitize"],
    &["soak", "--launches", "2"],
    &["cross-check", "--products", "1"],
];
const SIM: [&str; 4] = ["--device", "sim", "--profile", "l4"];

/// An ended run without a finding is neither right nor wrong. A kernel without a launch has no result.
#[test]
fn a_run_that_ended_early_is_not_wrong() {
    for command in COMMANDS {
        let output = output(&[command, &SIM].concat());
        let said = text(&output.stdout);
        let verdict = said.lines().last().unwrap_or_default();
        assert!(verdict.starts_with("ended early, nothing wrong so far: "), "{command:?}: {verdict}");
        assert!(said.lines().any(|line| line.ends_with("  not run")), "{command:?}: {said}");
        // The spaces are those before a number. A kernel that ran may have 100.00 %.
        for result in ["  clean, 0 launches", " 0.00 % the same", " 0.00 %    0.00"] {
            assert!(!said.contains(result), "{command:?}: {result}: {said}");
        }
    }
}

/// The error counts kernels that the device runs.
#[test]
fn skipped_kernels_are_not_counted() {
    for command in COMMANDS {
        let report = end(&[command, &SIM].concat());
        let rows = report["kernels"].as_array().expect("a list");
        let able = rows.iter().filter(|row| row["skipped"].is_null()).count();
        assert!(able < rows.len(), "an L4 does not run every kernel");
        let words: Vec<_> = report["error"].as_str().expect("in words").split_whitespace().collect();
        let [done, all] = [0, 2].map(|at| words[at].parse::<usize>().expect("a number"));
        assert!(all == able && done < all, "{command:?}: {words:?}, {able}");
        let verdict = ["passed", "clean", "agree"].map(|key| &report[key]).into_iter().find(|v| !v.is_null());
        assert!(verdict.is_none_or(|verdict| verdict == false), "{command:?}: {report}");
    }
}
