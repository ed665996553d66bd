//! `cargo xtask candle gpu-pack`: collects the tests, the comparison, the text generator and the trainer for
//! a GPU machine without Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{peer, target, with_nvcc};
use crate::process::{self, Result, stdout};
use crate::setup;

/// Path of the packed folder, relative to the root.
const FOLDER: &str = "candle-pack";

/// Largest size of the packed folder, in bytes.
const LIMIT: u64 = 60 << 20;

/// Programs of candle's workspace, as `[cargo's option for the kind of program, program, package]`.
const PROGRAMS: [[&str; 3]; 6] = [
    ["--test", "flash_attn_tests", "candle-flash-attn"],
    ["--test", "callers", "ferroflash-candle"],
    ["--test", "training", "ferroflash-candle"],
    ["--bin", "candle-bench", "candle-bench"],
    ["--bin", "generate", "generate"],
    ["--bin", "train", "train"],
];

/// Builds the programs. The comparison contains candle-flash-attn's kernels. Compresses all programs into one
/// archive, because most of each program is candle's code.
pub fn run(root: &Path) -> Result {
    let library = peer::library(root)?;
    // One command builds all programs. With another selection of packages, cargo would choose other features,
    // and nvcc would run again.
    let of_each = PROGRAMS.iter().flat_map(|[kind, name, package]| ["-p", *package, *kind, *name]);
    with_nvcc(root, &["build"].into_iter().chain(of_each).collect::<Vec<_>>(), Some(&library))?;
    let pack = setup::fresh_folder(&root.join(FOLDER))?;
    let release = target(root).join("release");
    let programs = setup::fresh_folder(&pack.join("programs"))?;
    for [kind, name, _] in PROGRAMS {
        let from = if kind == "--bin" { release.join(name) } else { newest(&release.join("deps"), name)? };
        process::quiet(Command::new("strip").arg("-o").arg(programs.join(name)).arg(from))?;
    }
    let archive = pack.join("programs.tar.xz");
    let mut tar = Command::new("tar");
    // The compression window is larger than a program, so that each program is compressed with the help of
    // the previous program.
    tar.env("XZ_OPT", "--lzma2=preset=3,dict=96MiB").arg("-cJf").arg(&archive).arg("-C").arg(&programs);
    process::quiet(tar.args(PROGRAMS.map(|[_, name, _]| name)))?;
    fs::remove_dir_all(&programs)?;
    fs::copy(root.join("candle/run.sh"), pack.join("run.sh"))?;
    let commit =
        stdout(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root)).unwrap_or_default();
    fs::write(pack.join("about.txt"), format!("commit {commit}"))?;
    let bytes = fs::metadata(&archive)?.len();
    if bytes > LIMIT {
        return Err(format!("{FOLDER} has {} MiB: at most {} MiB fit", bytes >> 20, LIMIT >> 20).into());
    }
    println!("{FOLDER}: {} MiB; copy it to the GPU machine and run `sh run.sh` there", bytes >> 20);
    Ok(())
}

/// The newest binary of a test. The name contains a hash from cargo.
fn newest(folder: &Path, test: &str) -> Result<PathBuf> {
    let start = format!("{test}-");
    let programs = setup::files(folder, "")?.into_iter().filter(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start) && !name.contains('.')
    });
    let made = |file: &PathBuf| fs::metadata(file).and_then(|about| about.modified()).ok();
    programs.max_by_key(made).ok_or_else(|| format!("cargo left no {test}").into())
}
