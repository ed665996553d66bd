//! Helpers for tests of the program. The helpers run the program, and make a folder for the files of one
//! test.
use ferroflash::lineage::{CONFIGURATIONS, Configuration};
use ferroflash::ptx::is_embedded;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of one test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    /// Returns the path of a file in the folder. The file need not exist.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The input file that is in the repository.
pub const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/qkv.safetensors");

/// Returns a command that runs the program with these arguments.
pub fn ferroflash(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflash"));
    command.args(args);
    command
}

/// Returns the first kernel of a family that the program carries. The program carries all kernels or a
/// sample.
pub fn of_family(family: &str) -> &'static str {
    let mut subjects = reference::subjects().filter(|subject| is_embedded(subject.contract().symbol));
    let found = subjects.find(|subject| subject.family() == family);
    found.expect("each family is carried").contract().symbol
}

/// Returns a lineage configuration whose kernels are all in the program.
pub fn configuration() -> &'static str {
    let is_carried = |configuration: &&Configuration| {
        configuration.entries().is_ok_and(|mut entries| entries.all(|e| is_embedded(e.contract.symbol)))
    };
    CONFIGURATIONS.iter().find(is_carried).expect("one is carried for all of its masks").name
}

/// Returns printed bytes as text.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Runs the program, expects success, and returns the JSON report.
#[track_caller]
pub fn report(args: &[&str]) -> Value {
    let output = ferroflash(args).arg("--json").output().expect("starts");
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// Expects that `output` is an error with exit code `code`, on one line that contains `message`.
#[track_caller]
pub fn check_error(output: &Output, code: i32, message: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let line = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(line.contains(message), "`{message}` should be in: {stderr}");
    let is_note = |line: &str| line.starts_with("no GPU (") || line.starts_with("--ptx-dir replaces ");
    let others = stderr.lines().filter(|line| !line.starts_with("error: ") && !is_note(line));
    let unexpected: Vec<_> = others.filter(|line| !is_progress(line)).collect();
    assert!(unexpected.is_empty() && stderr.matches("error: ").count() == 1, "one line: {stderr}");
}

/// Returns whether a command printed this line because ten seconds had passed: `verify: 1 of 2, 10 s: ..`, or
/// `computing on the GPU, 10 s`.
fn is_progress(line: &str) -> bool {
    let is_number = |word: &str| word.trim_end_matches(',').parse::<u64>().is_ok();
    let told = line.split_once(": ").map_or(line, |(_, told)| told);
    match told.split(' ').collect::<Vec<_>>()[..] {
        [done, "of", all, seconds, ..] => [done, all, seconds].into_iter().all(is_number),
        [.., before, seconds, "s"] => before.ends_with(',') && is_number(seconds),
        _ => false,
    }
}

/// Runs the program with `args` twice, for text and for JSON, and expects this error.
#[track_caller]
pub fn check(args: &[&str], code: i32, message: &str) {
    let output = ferroflash(args).output().expect("starts");
    check_error(&output, code, message);
    assert_eq!(text(&output.stdout), "", "nothing is reported");
    let output = ferroflash(args).arg("--json").output().expect("starts");
    check_error(&output, code, message);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["exit_code"], code);
    assert!(report["error"].as_str().is_some_and(|error| error.contains(message)), "{report}");
}
