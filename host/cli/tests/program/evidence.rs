//! Tests the part of tests/gpu/evidence.sh that runs without a GPU.
use crate::common::{Folder, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

/// The folder of the script.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/gpu/");

fn script(name: &str) -> String {
    fs::read_to_string(format!("{SCRIPTS}{name}")).expect("the file is there")
}

/// Returns a packed folder with the script and the program.
fn packed(test: &str) -> Folder {
    let folder = Folder::new(test);
    for name in ["evidence.sh", "calls.sh"] {
        folder.write(name, &script(name));
    }
    symlink(env!("CARGO_BIN_EXE_ferroflash"), folder.path("ferroflash")).expect("linked");
    folder.write("about.txt", "commit 0123abc\n");
    folder
}

fn evidence(folder: &Folder, args: &[&str]) -> Output {
    Command::new("sh").arg(folder.path("evidence.sh")).args(args).output().expect("sh starts")
}

#[test]
fn every_call_ends_within_ten_minutes_and_parts_are_all_kernels() {
    let folder = packed("evidence-list");
    let list = evidence(&folder, &["list"]);
    let lines: Vec<_> = text(&list.stdout).lines().collect();
    assert!(lines.len() > 30, "{}", text(&list.stderr));
    let names: Vec<_> = lines.iter().map(|line| line.split_whitespace().next().expect("a name")).collect();
    for line in &lines {
        let seconds = line.split_whitespace().nth(1).and_then(|word| word.parse::<u32>().ok());
        // After `timeout` has asked a program to end, it waits 25 more seconds before it kills the program.
        assert!(seconds.is_some_and(|seconds| (30..=570).contains(&seconds)), "{line}");
    }
    let readme = script("README.md");
    assert!(!readme.contains("]("), "links of tests/gpu/README.md are dead in the packed folder");
    let told: Vec<_> =
        readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(told, names, "the calls of tests/gpu/README.md");
    let all: BTreeSet<_> =
        reference::subjects().map(|subject| subject.contract().symbol.to_owned()).collect();
    for command in ["verify-", "sanitize-", "agree-"] {
        let mut seen = BTreeSet::new();
        let parts = names.iter().filter_map(|name| name.strip_prefix(command));
        for part in parts.filter(|part| *part != "h200-simulated") {
            let said = evidence(&folder, &["part", part]);
            let kernels: Vec<_> = text(&said.stdout).lines().map(str::to_owned).collect();
            assert!((20..=110).contains(&kernels.len()), "{part}: {}", kernels.len());
            assert!(kernels.into_iter().all(|name| seen.insert(name)), "{part} has one that another has");
        }
        assert_eq!(seen, all, "{command}");
    }
    for seconds in ["5", "69", "600s", "1000", "x"] {
        let mut wrong = Command::new("sh");
        wrong.arg(folder.path("evidence.sh")).args(["run", "soak", &folder.path("out")]);
        let refused = wrong.env("SECONDS_OF_CALL", seconds).output().expect("sh starts");
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
        let said = format!("SECONDS_OF_CALL={seconds}: a number of seconds, from 70 to 999\n");
        assert_eq!(text(&refused.stderr), said);
    }
    for wrong in [
        &["run"][..],
        &["pack", "nothing", "x"],
        &["run", "nothing", "x"],
        &["run", "verify-cache"],
        &["weather"],
        &[],
    ] {
        assert_eq!(evidence(&folder, wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn calls_that_lack_what_they_need_fail() {
    let folder = packed("evidence-lacking");
    let out = folder.path("out");
    let names = ["peers-flashinfer", "candle-check", "variants-own", "candle-check"];
    let ran = evidence(&folder, &[&["run"][..], &names, &[&out]].concat());
    assert_eq!(ran.status.code(), Some(3), "{}", text(&ran.stderr));
    let run = fs::read_to_string(folder.0.join("out/run.json")).expect("written");
    assert_eq!(run.matches("(FAILED)").count(), 3, "{run}");
    fs::remove_file(folder.path("ferroflash")).expect("a link");
    for call in [&["run", "soak", &out][..], &["part", "cache"]] {
        let ran = evidence(&folder, call);
        assert_eq!(ran.status.code(), Some(2), "{call:?}");
        assert!(text(&ran.stderr).starts_with("no ./ferroflash here: "), "{call:?}: {}", text(&ran.stderr));
    }
}

/// Stands for a program that takes a second to report after it was asked to end.
const SLOW: &str = r#"#!/bin/sh
trap 'sleep 1; echo "{\"ended\": true}"; exit 1' TERM
touch begun
while :; do sleep 0.1; done
"#;

/// Returns a packed folder whose program is [`SLOW`].
fn slow(test: &str) -> Folder {
    let folder = packed(test);
    fs::remove_file(folder.path("ferroflash")).expect("a link");
    folder.write("ferroflash", SLOW);
    fs::set_permissions(folder.path("ferroflash"), PermissionsExt::from_mode(0o755)).expect("its owner");
    folder
}

/// Starts the calls `soak` and `programs`, and ends them by two signals as soon as `due` returns true. The
/// second signal must change nothing. `receivers` returns the processes that receive the signals, if not only
/// the script does. Returns run.json.
fn end(folder: &Folder, due: impl Fn() -> bool, receivers: Option<&dyn Fn() -> Vec<String>>) -> String {
    let script = [&folder.path("evidence.sh"), "run", "soak", "programs", &folder.path("out")];
    let mut ran = Command::new("sh").args(script).env("GPUS", "1").spawn().expect("sh starts");
    while !due() {
        assert!(ran.try_wait().expect("a child").is_none(), "it ended before its program began");
        thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..2 {
        let receivers = receivers.map_or_else(|| vec![ran.id().to_string()], |receivers| receivers());
        let killed = Command::new("kill").args(["-s", "TERM"]).args(&receivers).status();
        // Some of several processes may have ended by themselves.
        assert!(killed.expect("kill starts").success() || receivers.len() > 1);
        thread::sleep(Duration::from_millis(300));
    }
    let code = ran.wait().expect("a child").code();
    let run = fs::read_to_string(folder.0.join("out/run.json")).expect("written");
    assert_eq!(code, Some(2), "{run}");
    assert_eq!(run.matches("(FAILED)").count(), 2, "{run}");
    assert!(!folder.0.join("out/program-gpu.json").exists(), "{run}");
    run
}

#[test]
fn an_ended_call_leaves_its_report_and_begins_nothing_more() {
    let folder = slow("evidence-ended");
    end(&folder, || folder.0.join("begun").exists(), None);
    let soak = fs::read_to_string(folder.0.join("out/soak.json")).expect("written");
    assert_eq!(soak, "{\"ended\": true}\n");
}

/// Programs that end a job send their signal to all of its processes.
#[test]
fn a_signal_to_every_process_leaves_the_report() {
    let folder = slow("evidence-job");
    let is_there = |pid: &String| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.0)
            && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.starts_with(b"sleep"))
    };
    let job = || {
        let processes = fs::read_dir("/proc").expect("the processes").filter_map(Result::ok);
        processes.filter_map(|one| one.file_name().into_string().ok()).filter(is_there).collect::<Vec<_>>()
    };
    end(&folder, || folder.0.join("begun").exists(), Some(&job));
    let soak = fs::read_to_string(folder.0.join("out/soak.json")).expect("written");
    assert_eq!(soak, "{\"ended\": true}\n");
}

const DUE: &str = "    touch due\n";
const WAITS: &str = "    while [ -z \"$ended\" ]; do sleep 0.1; done\n";

/// Ends the calls of a script in which `line` is changed. An earlier call left soak.json.
fn end_with(test: &str, line: &str, changed: &str) -> Folder {
    let (folder, whole) = (slow(test), script("evidence.sh"));
    assert_eq!(whole.matches(line).count(), 1, "{line}");
    folder.write("evidence.sh", &whole.replace(line, changed));
    fs::create_dir(folder.path("out")).expect("a new folder");
    folder.write("out/soak.json", "earlier\n");
    end(&folder, || folder.0.join("due").exists(), None);
    folder
}

/// The script learns the number of a process after it has started the process. These lines make the script
/// wait for the signal before that, or start a process that takes a second to become `timeout`.
#[test]
fn a_signal_that_comes_too_early_ends_the_calls() {
    const PROGRAM: &str = "    timeout -k 25 \"$limit\" \"$@\" &\n";
    const CALLS: &str = "        - \"$cores\" NAME \"$out\" &\n";
    const LATE: &str = "    (sleep 1; exec timeout -k 25 \"$limit\" \"$@\") &\n";
    for (line, changed) in [
        (PROGRAM, [PROGRAM, DUE, WAITS].concat()),
        (CALLS, [CALLS, DUE, WAITS].concat()),
        (PROGRAM, [LATE, DUE, WAITS].concat()),
        (PROGRAM, [LATE, "    running=$!\n", DUE].concat()),
    ] {
        end_with("evidence-early", line, &changed);
    }
}

#[test]
fn a_program_that_did_not_begin_leaves_its_earlier_output() {
    const CHECK: &str = "    [ -z \"$ended\" ] && timed \"$@\"";
    let folder = end_with("evidence-not-begun", CHECK, &[DUE, WAITS, CHECK].concat());
    let soak = fs::read_to_string(folder.0.join("out/soak.json"));
    assert_eq!(soak.expect("it stays"), "earlier\n");
}

#[test]
fn a_dry_run_leaves_what_a_call_leaves() {
    let folder = packed("evidence-dry");
    let ran = evidence(&folder, &["dry", &folder.path("out")]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let read = |name: &str| -> Value {
        let text =
            fs::read_to_string(folder.0.join("out").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    for (file, key) in [
        ("verify.json", "passed"),
        ("sanitize.json", "clean"),
        ("soak.json", "passed"),
        ("fuzz.json", "passed"),
        ("report.json", "passed"),
    ] {
        assert_eq!(read(file)[key], true, "{file}");
    }
    assert_eq!(read("agree.json").get("agree"), Some(&Value::Null), "no GPU was compared");
    let run = read("run.json");
    assert_eq!(run["commit"], "0123abc");
    let commands = run["commands"].as_array().expect("a list");
    assert_eq!(commands.len(), 6, "{run}");
    assert!(commands.iter().all(|c| c.as_str().is_some_and(|c| c.starts_with("./ferroflash "))), "{run}");
    assert!(!run.to_string().contains(&folder.path("out")), "{run}");

    let mut other = Command::new("sh");
    other.arg(folder.path("evidence.sh")).args(["dry", &folder.path("out")]).env("COMMIT", "4567def");
    let refused = other.output().expect("sh starts");
    assert_eq!(refused.status.code(), Some(2), "a folder has one commit: {}", text(&refused.stderr));

    // A repeated call replaces its earlier output.
    let again = evidence(&folder, &["dry", &folder.path("out")]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(read("run.json")["commands"], run["commands"]);

    let file = folder.path("all.tar.gz");
    assert!(evidence(&folder, &["pack", &folder.path("out"), &file]).status.success());
    assert!(fs::metadata(&file).is_ok_and(|about| about.len() > 1000));
}
