//! `cargo xtask candle`: tasks of the workspace in candle/. That workspace has its own lock file, and its
//! build runs nvcc. The nvcc comes from the machine or from wheels. In tasks that run no kernel, a stand-in
//! replaces nvcc.

mod pack;
mod package;
mod peer;
mod toolkit;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Subcommand;

use crate::kernels::{self, Build};
use crate::process::{Result, cargo, loud};

/// The tasks of candle's workspace.
#[derive(Subcommand)]
pub enum Task {
    /// Check everything that needs neither a GPU nor nvcc: clippy, docs, format, and tests on the CPU
    Check,
    /// Print the lines that set your shell up to build candle without a CUDA toolkit:
    /// eval "$(cargo xtask candle toolkit)"
    Toolkit,
    /// Build the library, the examples and candle's tests with nvcc
    Build,
    /// Build candle's tests of candle-flash-attn on FerroFlash's kernels, and run them
    Test,
    /// Compile the kernels of candle-flash-attn that the benchmark compares, as a library
    Peer,
    /// Collect tests, comparison, `generate` and `train` in ./candle-pack, for a GPU machine without Rust
    GpuPack,
    /// Package the published crate, unpack it outside this repository, and check it there
    Package,
}

/// Runs a task.
pub fn run(root: &Path, task: &Task) -> Result {
    match task {
        Task::Check => check(root),
        Task::Toolkit => toolkit::nvcc(root).map(|nvcc| print!("{}", nvcc.exports())),
        Task::Build => with_nvcc(root, &["build", "--workspace", "--all-targets"], None),
        Task::Test => {
            let one_by_one = ["test", "-p", "candle-flash-attn", "--", "--test-threads=1"];
            with_nvcc(root, &one_by_one, None)
        }
        Task::Peer => peer::library(root).map(|folder| println!("{}", folder.display())),
        Task::GpuPack => pack::run(root),
        Task::Package => package::run(root),
    }
}

/// Checks everything that needs neither a GPU nor nvcc.
pub fn check(root: &Path) -> Result {
    peer::tests(root)?;
    let nvcc = toolkit::stand_in(root)?;
    let run = |arguments: &[&str]| {
        let mut command = workspace(root, &nvcc);
        command.args(arguments).env("RUSTDOCFLAGS", "-Dwarnings");
        // No kernel runs here, so the library is built without kernels.
        if env::var_os("FERROFLASH_PTX_DIR").is_none() {
            command.env("FERROFLASH_PTX_DIR", toolkit::folder(root, "no-ptx")?);
        }
        loud(&mut command)
    };
    // candle's tests are unmodified, and they must only compile.
    let ours = ["-p", "ferroflash-candle", "-p", "candle-bench", "-p", "generate", "-p", "train"];
    run(&[&["fmt", "--check"][..], &ours].concat())?;
    run(&[&["clippy", "--quiet", "--all-targets"][..], &ours, &["--", "-Dwarnings"]].concat())?;
    run(&["check", "--quiet", "-p", "candle-flash-attn", "--all-targets"])?;
    run(&["doc", "--quiet", "--no-deps", "-p", "ferroflash-candle"])?;
    let on_the_cpu = ["-p", "ferroflash-candle", "-p", "generate", "-p", "train", "--no-default-features"];
    run(&[&["test", "--quiet"][..], &on_the_cpu].concat())
}

/// Runs cargo in candle's workspace with the release profile, all kernels and nvcc. If there is a `peer`, the
/// build links candle-flash-attn's kernels beside FerroFlash's.
fn with_nvcc(root: &Path, arguments: &[&str], peer: Option<&Path>) -> Result {
    peer::tests(root)?;
    let mut command = workspace(root, &toolkit::nvcc(root)?);
    let (first, rest) = arguments.split_first().ok_or("the arguments name no cargo command")?;
    command.arg(first).arg("--release").args(rest);
    if let Some(peer) = peer {
        command.env("CANDLE_FLASH_ATTN", peer);
    }
    if env::var_os("FERROFLASH_PTX_DIR").is_none() {
        let ptx = toolkit::folder(root, "ptx")?;
        kernels::ptx(root, &Build { out: Some(ptx.clone()), ..Build::all() })?;
        command.env("FERROFLASH_PTX_DIR", ptx);
    }
    loud(&mut command)
}

/// The command that runs cargo in candle's workspace with this nvcc.
fn workspace(root: &Path, nvcc: &toolkit::Nvcc) -> Command {
    let mut command = cargo();
    nvcc.on(&mut command);
    command.current_dir(root.join("candle")).env("CARGO_TARGET_DIR", target(root));
    command
}

/// The build folder of candle's workspace. The folder is separate from the root workspace's build folder,
/// where crates have other features.
fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from).join("candle")
}
