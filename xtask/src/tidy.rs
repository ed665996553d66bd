//! `cargo xtask tidy`: checks those invariants of ARCHITECTURE.md that the text of the files shows.

mod circles;
mod imports;
mod links;
mod suites;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::{self, Result};

/// Largest number of lines of a source file, because a file has one concept.
const MAX_LINES: usize = 400;

/// Largest number of columns in Rust, C and prose, so that two files fit side by side on a screen.
const MAX_COLUMNS: usize = 110;

/// The invariants of words, whose first lines explain the notation.
const RULES: &str = include_str!("tidy/rules.txt");

/// An invariant: no file below `applies`, unless it is below `except`, contains one of `words` in its code.
struct Rule {
    applies: Vec<&'static str>,
    except: Vec<&'static str>,
    words: Vec<&'static str>,
    why: &'static str,
}

/// Reads the rules.
fn rules() -> Vec<Rule> {
    let lines: Vec<_> = RULES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (rules, []) = lines.as_chunks() else { panic!("a rule has three lines") };
    let rule = |[paths, words, why]: &[&'static str; 3]| {
        let (applies, except) = paths.split_once(" - ").unwrap_or((paths, ""));
        let [applies, except] = [applies, except].map(|paths| paths.split_whitespace().collect());
        Rule { applies, except, words: words.trim().split(" | ").collect(), why: why.trim() }
    };
    rules.iter().map(rule).collect()
}

/// Folders that exist on one machine only. No text may name a path in them, neither code nor prose nor
/// evidence.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/ro", "ot"), concat!("/ho", "me"), concat!("/tm", "p"), concat!("/wo", "rk")];

/// Checks every text file that git tracks or would add. Checks all rules on Rust sources, and checks machine
/// paths and line lengths on all texts.
pub fn run(root: &Path) -> Result {
    let list = process::stdout(
        Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root),
    )?;
    let (rules, mut broken, mut sources) = (rules(), Vec::new(), Vec::new());
    for name in list.lines() {
        // The file may be deleted but still tracked, or may not be text.
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        if name.ends_with(".rs") {
            check(name, &text, &rules, &mut broken);
        }
        broken.extend(wide_lines(name, &text));
        broken.extend(machine_paths(name, &text));
        sources.push((name, text));
    }
    broken.extend(circles::broken(&sources));
    broken.extend(links::broken(&sources));
    broken.extend(suites::broken(&sources));
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
}

fn check(name: &str, text: &str, rules: &[Rule], broken: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        broken.push(format!("{name}: {lines} lines: at most {MAX_LINES}; split the file"));
    }
    if !name.contains("/fixtures/") && !text.starts_with("//!") {
        broken.push(format!("{name}:1: the file must begin with a `//!` line that names its content"));
    }
    for (n, line) in text.lines().enumerate() {
        let reason = line.trim_start().strip_prefix(concat!("#[ign", "ore = \""));
        if reason.is_some_and(|reason| !reason.contains("cargo xtask")) {
            broken.push(format!("{name}:{}: an ignored test must name the command that runs it", n + 1));
        }
    }
    for rule in rules.iter().filter(|rule| below(name, &rule.applies) && !below(name, &rule.except)) {
        for (n, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if let Some(word) = rule.words.iter().find(|word| code.contains(**word)) {
                broken.push(format!("{name}:{}: `{word}`: {}", n + 1, rule.why));
            }
        }
    }
}

/// Lines of Rust, C and prose that are too long. A row of a table cannot be wrapped, and a line of one word,
/// such as a link, cannot be wrapped either. docs/evidence contains output of programs, which is not wrapped.
fn wide_lines(name: &str, text: &str) -> Vec<String> {
    let held = [".rs", ".md", ".h", ".c"].iter().any(|end| name.ends_with(end));
    if !held || below(name, &["docs/evidence"]) {
        return Vec::new();
    }
    let wraps = |line: &str| {
        let prose = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        !prose.starts_with('|') && prose.contains(' ')
    };
    let columns = text.lines().map(|line| (line, line.chars().count()));
    let wide = columns.enumerate().filter(|(_, (line, n))| *n > MAX_COLUMNS && wraps(line));
    wide.map(|(at, (_, n))| format!("{name}:{}: {n} columns; at most {MAX_COLUMNS}", at + 1)).collect()
}

/// The places in a text that name a folder of one machine. If a folder has the same name, but is below
/// another folder, it does not count.
fn machine_paths(name: &str, text: &str) -> Vec<String> {
    let continues = |c: char| c.is_alphanumeric() || "_-.~})]>".contains(c);
    let names = |line: &str, folder: &str| {
        line.match_indices(folder).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + folder.len()..]);
            !before.ends_with(continues)
                && !after.starts_with(|c: char| c.is_alphanumeric() || "_-".contains(c))
        })
    };
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if let Some(folder) = MACHINE_FOLDERS.into_iter().find(|folder| names(line, folder)) {
            found.push(format!("{name}:{}: `{folder}`: remove the path of this machine", n + 1));
        }
    }
    found
}

/// Whether a file is one of the paths, is a module at one of them, or lies below one of them.
fn below(name: &str, paths: &[&str]) -> bool {
    let is_of = |rest: &str| rest.is_empty() || rest.starts_with('/') || rest == ".rs";
    paths.iter().any(|path| name.strip_prefix(path).is_some_and(is_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_bite_where_they_apply_and_nowhere_else() {
        let asm = concat!("//! X.\nfn f() { unsafe { core::arch::as", "m!(\"\") } }\n");
        let cases = [
            ("device/tile/src/a.rs", asm, 1),
            ("device/cuda_std/src/a.rs", asm, 0),
            ("kernels-gpu/src/a.rs", asm, 1),
            ("kernels-gpu/src/a.rs", "//! X.\n#![allow(unsafe_code)]\n", 1),
            ("kernels-gpu/src/lib.rs", "//! X.\n#[allow(unsafe_code)]\n", 0),
            ("device/tile/src/a.rs", "//! X.\nfn softmax() {}\n", 1),
            ("device/tile/src/a.rs", "//! X.\n// unlike softmax\n", 0),
            ("host/src/plan.rs", "//! X.\nuse libcuda::Device;\n", 1),
            ("host/src/select/rules.rs", "//! X.\nuse crate::driver::RawDriver;\n", 1),
            ("host/src/planner.rs", "//! X.\nuse libcuda::Device;\n", 0),
            ("host/src/a.rs", "fn f() {}\n", 1),
            ("host/src/a.rs", &format!("//! X.\n{}", "\n".repeat(MAX_LINES)), 1),
        ];
        for (name, text, expected) in cases {
            let mut broken = Vec::new();
            check(name, text, &rules(), &mut broken);
            assert_eq!(broken.len(), expected, "{name}: {text:?}: {broken:?}");
        }
    }

    #[test]
    fn lines_of_rust_and_prose_are_held_to_their_width() {
        let words = "word ".repeat(MAX_COLUMNS / 5 + 1);
        let cases = [
            ("a.md", words.clone(), 1),
            ("a.rs", format!("//! {words}"), 1),
            ("a.h", format!("/* {words} */"), 1),
            ("a.md", "ä".repeat(MAX_COLUMNS - 1) + " b", 1),
            ("a.md", "ä".repeat(MAX_COLUMNS - 2) + " b", 0),
            ("a.rs", format!("/// | {words}"), 0),
            ("a.md", format!("| {words}|"), 0),
            ("a.md", "https://example.org/".repeat(MAX_COLUMNS / 10), 0),
            ("a.json", words.clone(), 0),
            ("docs/evidence/a.md", words, 0),
        ];
        for (name, text, expected) in cases {
            assert_eq!(wide_lines(name, &text).len(), expected, "{name}: {text}");
        }
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_text() {
        let [root, home, tmp, work] = MACHINE_FOLDERS;
        let found = [
            format!("see {home}/somebody/notes"),
            format!("{{\"path\": \"{root}/x\"}}"),
            format!("cd {tmp}."),
            format!("fine\n`{work}/main`"),
            format!("file://{tmp}/x"),
        ];
        let fine = [
            format!("target{tmp}/x"),
            format!("${{TMP}}{work}/x"),
            format!("host{home}/x"),
            format!("frame{work}"),
            "a network".to_owned(),
            format!("1{root}.x"),
            format!("{root}ed"),
        ];
        for text in found {
            assert_eq!(machine_paths("a.md", &text).len(), 1, "{text}");
        }
        for text in fine {
            assert_eq!(machine_paths("a.md", &text), Vec::<String>::new(), "{text}");
        }
    }
}
