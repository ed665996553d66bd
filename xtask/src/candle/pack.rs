//! `cargo xtask candle gpu-pack`: candle's own tests and the comparison, for a GPU machine without Rust.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{peer, target, with_nvcc};
use crate::process::{self, Result, stdout};
use crate::setup;

/// The folder, relative to the root.
const FOLDER: &str = "candle-pack";

/// What it may weigh, in bytes.
const LIMIT: u64 = 60 << 20;

/// Builds the programs, with the peer's kernels in the comparison, and compresses them together: most of
/// each is candle's.
pub fn run(root: &Path) -> Result {
    let library = peer::library(root)?;
    with_nvcc(root, &["build", "-p", "candle-bench"], Some(&library))?;
    let tests = ["test", "-p", "candle-flash-attn", "--test", "flash_attn_tests", "--no-run"];
    with_nvcc(root, &tests, None)?;
    let pack = setup::fresh_folder(&root.join(FOLDER))?;
    let release = target(root).join("release");
    let programs = setup::fresh_folder(&pack.join("programs"))?;
    let tests = setup::files(&release.join("deps"), "")?.into_iter().filter(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("flash_attn_tests-") && !name.contains('.')
    });
    let made = |file: &Path| fs::metadata(file).and_then(|about| about.modified()).ok();
    let newest = tests.max_by_key(|file| made(file)).ok_or("cargo left no tests")?;
    for (from, name) in [(newest, "flash_attn_tests"), (release.join("candle-bench"), "candle-bench")] {
        process::quiet(Command::new("strip").arg("-o").arg(programs.join(name)).arg(from))?;
    }
    let archive = pack.join("programs.tar.xz");
    let mut tar = Command::new("tar");
    // A window in which all of the second program finds what the first one has.
    tar.env("XZ_OPT", "--lzma2=preset=3,dict=96MiB").arg("-cJf").arg(&archive).arg("-C").arg(&programs);
    process::quiet(tar.args(["flash_attn_tests", "candle-bench"]))?;
    fs::remove_dir_all(&programs)?;
    fs::copy(root.join("candle/run.sh"), pack.join("run.sh"))?;
    let commit =
        stdout(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root)).unwrap_or_default();
    fs::write(pack.join("about.txt"), format!("commit {commit}"))?;
    let bytes = fs::metadata(&archive)?.len();
    if bytes > LIMIT {
        return Err(format!("{FOLDER} has {} MiB; at most {} fit", bytes >> 20, LIMIT >> 20).into());
    }
    println!("{FOLDER}: {} MiB; copy it to the GPU machine and run `sh run.sh` there", bytes >> 20);
    Ok(())
}
