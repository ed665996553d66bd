//! Tests that `ferroflash sanitize` reports bugs that are planted in kernels. Each finding must have the
//! right kind, a source line, and a line of the kernel for each of the two accesses.
use crate::common::Folder;
use ferroflash::kernels::{AttnInfo, Class, Isa, plain};
use ferroflash::ptx::{self, is_embedded};
use ptx_sim::mutate::{Mutant, Operator, mutants};
use serde_json::Value;
use std::process::Command;

/// Returns a small kernel of the table that is in this program.
fn entry() -> &'static str {
    let is_small = |e: &&AttnInfo| (e.tile_m, e.tile_n, e.contract.threads) == (64, 64, 128);
    let small = plain(Isa::Sm80, Class::Dense).filter(is_small).map(|e| e.contract.symbol);
    small.filter(|symbol| is_embedded(symbol)).last().expect("one is carried")
}

/// Runs `ferroflash sanitize`. Returns the exit code, the findings of the first kernel, and the text.
fn sanitize(args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let run = |json: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflash"));
        command.args(["sanitize", "--device", "sim"]).args(args).args(json);
        command.output().expect("starts")
    };
    let output = run(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["exit_code"].as_i64().unwrap_or(0), output.status.code().map_or(-1, i64::from));
    let findings = report["kernels"][0]["findings"].as_array().expect("a list").clone();
    let text = String::from_utf8_lossy(&run(&[]).stdout).into_owned();
    (output.status.code(), findings, text)
}

/// Expects a finding of one of `kinds` whose text names a line of `file`, and whose sides each have a line
/// below the folder `own`. Returns the number of sides.
#[track_caller]
fn check(
    (code, findings, text): (Option<i32>, Vec<Value>, String),
    kinds: &[&str],
    file: &str,
    own: &str,
) -> usize {
    assert_eq!(code, Some(1), "{text}");
    let of = |finding: &&Value| kinds.iter().any(|kind| finding["kind"] == *kind);
    let finding =
        findings.iter().find(of).unwrap_or_else(|| panic!("no finding of {kinds:?}: {findings:#?}"));
    let sides =
        ["first", "second"].map(|side| finding["report"][side]["place"]["source"].as_array().cloned());
    let sides: Vec<_> = sides.into_iter().flatten().collect();
    let named = |lines: &[Value], is_meant: &dyn Fn(&str) -> bool| {
        let found = lines.iter().find(|line| line["file"].as_str().is_some_and(is_meant));
        let line = found.unwrap_or_else(|| panic!("no line of {file} or {own}: {finding:#}"));
        let line = format!(
            "{}:{}",
            line["file"].as_str().expect("a name"),
            line["line"].as_u64().expect("a number")
        );
        assert!(!line.ends_with(":0") && text.contains(&line), "the text names {line}: {text}");
    };
    named(&sides.concat(), &|name| name.ends_with(file));
    sides.iter().for_each(|side| named(side, &|name| name.starts_with(own)));
    assert!(text.contains(finding["kind"].as_str().expect("a name")), "{text}");
    sides.len()
}

/// Returns every mutant of the entry by `operator` whose instruction begins with `opcode`.
fn planted(operator: Operator, opcode: &str) -> Vec<(Mutant, String)> {
    let text = ptx::source(entry()).expect("carried");
    let all = mutants(&text, entry()).expect("the simulator reads what the compiler writes");
    let chosen = all.into_iter().filter(|m| m.operator == operator && m.description.contains(opcode));
    let chosen: Vec<_> = chosen.map(|mutant| (mutant.clone(), mutant.apply(&text))).collect();
    assert!(!chosen.is_empty(), "{} has no {opcode}", entry());
    chosen
}

/// The folder of the kernels' lines. All other code is inlined into these lines.
const KERNELS: &str = "kernels-gpu/src/";

#[track_caller]
fn check_kernel(test: &str, ptx: &str, kinds: &[&str], file: &str) -> usize {
    let folder = Folder::new(test);
    folder.write(&format!("{}.ptx", entry()), ptx);
    let args = ["--ptx-dir", &folder.0.to_string_lossy(), "--config", entry(), "--seeds", "1"];
    check(sanitize(&args), kinds, file, KERNELS)
}

#[test]
fn the_kernel_itself_is_clean() {
    let (code, findings, text) = sanitize(&["--config", entry()]);
    assert_eq!((code, findings.len()), (Some(0), 0), "{text}");
    assert!(text.contains("clean"), "{text}");
}

#[test]
fn a_missing_wait() {
    for (_, ptx) in planted(Operator::DeleteWait, "wait_group") {
        check_kernel("wait", &ptx, &["pending-copy"], "cp_async.rs");
    }
}

#[test]
fn a_missing_barrier() {
    for (_, ptx) in planted(Operator::DeleteBarrier, "bar.sync") {
        let kinds = ["read-after-write", "write-after-read", "pending-copy"];
        assert_eq!(check_kernel("barrier", &ptx, &kinds, "cp_async.rs"), 2, "both sides");
    }
}

#[test]
fn a_misaligned_pointer() {
    let text = ptx::source(entry()).expect("carried");
    let at = text.find("cp.async.cg.shared.global [").expect("the kernel copies");
    let end = at + text[at..].find("], 16").expect("16 bytes at once");
    check_kernel("pointer", &format!("{}+8{}", &text[..end], &text[end..]), &["misaligned"], "cp_async.rs");
}

/// A user's kernel, with its compiler's line directives.
const OWN: &str = include_str!("own.ptx");

fn own(test: &str, address: &str, run: &str) -> (Option<i32>, Vec<Value>, String) {
    let folder = Folder::new(test);
    let ptx = folder.write("mine.ptx", &OWN.replace("ADDRESS", address));
    let launch = folder.write("launch.txt", &format!("# 32 words\nbuffer out u32 32\n{run}\n"));
    sanitize(&["--ptx", &ptx, "--launch", &launch])
}

#[test]
fn a_register_array_handed_to_ldmatrix() {
    let run = "run mine block 32 shared 512 args out";
    check(own("register-array", "%rd2", run), &["wrong-space"], "mine.rs", "mine.rs");
    let (code, findings, text) = own("shared-array", "%rd3", run);
    assert_eq!((code, findings.len()), (Some(0), 0), "{text}");
}

/// An expected report is not a finding. A missing report is a finding.
#[test]
fn reports_that_are_asked_for() {
    let run = "run mine block 32 shared 512 args out\nreport wrong-space";
    let (code, findings, text) = own("asked-for", "%rd2", run);
    assert_eq!((code, findings.len()), (Some(0), 0), "{text}");
    let (code, findings, text) = own("not-there", "%rd3", run);
    assert_eq!((code, findings[0]["kind"].as_str()), (Some(1), Some("missing-report")), "{text}");
    let (code, findings, text) =
        own("another", "%rd2", &run.replace("wrong-space", "deadlock wrong-space\nreport trap"));
    assert_eq!(
        (code, findings.len(), findings[0]["kind"].as_str()),
        (Some(1), 1, Some("missing-report")),
        "{text}"
    );
}

#[test]
fn what_kernels_print_is_shown() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ptx-sim/filetests/print.ptx");
    let (code, findings, text) = sanitize(&["--ptx", file]);
    assert_eq!((code, findings.len()), (Some(0), 0), "{text}");
    assert!(text.contains("printed: thread 0\n") && text.contains("printed: thread 3\n"), "{text}");
}

#[test]
fn shared_memory_without_opt_in() {
    let (code, findings, text) = own("no-opt-in", "%rd3", "run mine block 32 shared 65536 args out");
    assert_eq!((code, findings[0]["kind"].as_str()), (Some(2), Some("refused")), "{text}");
    assert!(text.contains(" 1 FINDING, "), "{text}");
    let message = findings[0]["message"].as_str().expect("in words");
    assert!(message.contains("launch.txt: script line 3") && message.contains("opt in"), "{message}");
    let (code, findings, text) = own("opt-in", "%rd3", "run mine block 32 shared 65536 optin 65536 args out");
    assert_eq!((code, findings.len()), (Some(0), 0), "{text}");
}
