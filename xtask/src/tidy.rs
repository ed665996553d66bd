//! `cargo xtask tidy`: the invariants of ARCHITECTURE.md that can be read off the text.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::{self, Result};

/// Lines a source file may have: one concept, one file.
const MAX_LINES: usize = 400;

/// One invariant: files below `applies` (but not below `except`) contain none of `words` in their code.
struct Rule {
    applies: &'static [&'static str],
    except: &'static [&'static str],
    words: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        applies: &["device", "kernels-gpu", "host", "ptx-sim", "tests"],
        except: &["device/cuda_std", "device/cuda_std_macros"],
        words: &[concat!("asm", "!("), concat!("global_", "asm!")],
        why: "only device/cuda_std contains assembly",
    },
    Rule {
        applies: &["kernels-gpu"],
        except: &["kernels-gpu/src/entries.rs"],
        words: &["unsafe {", "unsafe fn", "unsafe impl"],
        why: "kernels are safe code: the one `unsafe` stands at the entry",
    },
    Rule {
        applies: &["kernels-gpu/src"],
        except: &[],
        words: &["*const ", "*mut ", "byte_add", "size_of", "mbarrier", "phase", "thread_idx", "threadIdx", "THREADS"],
        why: "a kernel names no pointer, byte offset, barrier phase or thread count",
    },
    Rule {
        applies: &["device"],
        except: &[],
        words: &["attention", "softmax", "causal", "seqlen", "head_dim", "HEAD_DIM", "head dim"],
        why: "device/* names nothing of attention",
    },
    Rule {
        applies: &["host/src/plan.rs"],
        except: &[],
        words: &["libcuda", "cust::", "driver::", "Driver"],
        why: "plan is a pure function: it touches no device",
    },
    Rule {
        applies: &["device", "kernels-gpu", "host", "ptx-sim", "tests", "xtask"],
        except: &[],
        words: &[concat!("#[ign", "ore"), concat!("todo", "!("), concat!("unimplemented", "!(")],
        why: "no test is skipped and nothing is a stub",
    },
    Rule {
        applies: &["device", "kernels-gpu", "host", "ptx-sim", "tests", "xtask", "docs", "bench"],
        except: &[],
        words: &[concat!("\"/ro", "ot/"), concat!("\"/ho", "me/"), concat!("\"/tm", "p/")],
        why: "no path of one machine",
    },
];

/// Checks every source file that git knows or would take.
pub fn run(root: &Path) -> Result {
    let list = process::stdout(
        Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]).current_dir(root),
    )?;
    let mut broken = Vec::new();
    for name in list.lines() {
        // Deleted, but not yet from git.
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        check(name, &text, &mut broken);
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
}

fn check(name: &str, text: &str, broken: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        broken.push(format!("{name}: {lines} lines; split it (at most {MAX_LINES})"));
    }
    if !name.contains("/ui/") && !name.contains("/fixtures/") && !text.starts_with("//!") {
        broken.push(format!("{name}:1: begins with no `//!` line that says what the file owns"));
    }
    for rule in RULES.iter().filter(|r| below(name, r.applies) && !below(name, r.except)) {
        for (n, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if let Some(word) = rule.words.iter().find(|w| code.contains(**w)) {
                broken.push(format!("{name}:{}: `{}`: {}", n + 1, word.trim(), rule.why));
            }
        }
    }
}

/// Whether a file is, or lies below, one of the paths.
fn below(name: &str, paths: &[&str]) -> bool {
    paths.iter().any(|p| name.strip_prefix(p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_bite_where_they_apply_and_nowhere_else() {
        let asm = "//! X.\nfn f() { unsafe { core::arch::asm!(\"\") } }\n";
        let cases = [
            ("device/tile/src/a.rs", asm, 1),
            ("device/cuda_std/src/a.rs", asm, 0),
            ("kernels-gpu/src/a.rs", asm, 2),
            ("kernels-gpu/src/entries.rs", "//! X.\nunsafe { f() }\n", 0),
            ("device/tile/src/a.rs", "//! X.\nfn softmax() {}\n", 1),
            ("device/tile/src/a.rs", "//! X.\n// unlike softmax\n", 0),
            ("host/src/plan.rs", "//! X.\nuse libcuda::Device;\n", 1),
            ("host/src/planner.rs", "//! X.\nuse libcuda::Device;\n", 0),
            ("host/src/a.rs", "fn f() {}\n", 1),
            ("host/src/a.rs", &format!("//! X.\n{}", "\n".repeat(MAX_LINES)), 1),
        ];
        for (name, text, expected) in cases {
            let mut broken = Vec::new();
            check(name, text, &mut broken);
            assert_eq!(broken.len(), expected, "{name}: {text:?}: {broken:?}");
        }
    }
}
