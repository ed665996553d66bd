//! `cargo xtask candle`: what stands on candle. Its workspace has a lock file of its own, and its build
//! runs nvcc: the machine's, or else one from wheels, or where nothing is run a stand-in.

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

/// What may be done there.
#[derive(Subcommand)]
pub enum Task {
    /// Check everything that needs neither a GPU nor nvcc: clippy, docs, format, and tests on the CPU
    Check,
    /// Build the library, the examples and candle's own tests with nvcc
    Build,
    /// Build candle's own tests of candle-flash-attn on these kernels, and run them
    Test,
    /// Compile candle-flash-attn's own kernels, those that are compared with, as a library
    Peer,
    /// Gather in ./candle-pack tests, comparison and `generate` for a GPU machine without Rust
    GpuPack,
    /// Package what is published, and check it as it was unpacked, outside this repository
    Package,
}

/// Does it.
pub fn run(root: &Path, task: &Task) -> Result {
    match task {
        Task::Check => check(root),
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

/// Everything that needs neither a GPU nor nvcc.
pub fn check(root: &Path) -> Result {
    peer::tests(root)?;
    let nvcc = toolkit::stand_in(root)?;
    let run = |arguments: &[&str]| {
        let mut command = workspace(root, &nvcc);
        command.args(arguments).env("RUSTDOCFLAGS", "-Dwarnings");
        // Nothing runs a kernel: the library does without.
        if env::var_os("FERROFLASH_PTX_DIR").is_none() {
            command.env("FERROFLASH_PTX_DIR", toolkit::folder(root, "no-ptx")?);
        }
        loud(&mut command)
    };
    // candle's own tests are as they are: they must compile.
    let ours = ["-p", "ferroflash-candle", "-p", "candle-bench", "-p", "generate"];
    run(&[&["fmt", "--check"][..], &ours].concat())?;
    run(&[&["clippy", "--quiet", "--all-targets"][..], &ours, &["--", "-Dwarnings"]].concat())?;
    run(&["check", "--quiet", "-p", "candle-flash-attn", "--all-targets"])?;
    run(&["doc", "--quiet", "--no-deps", "-p", "ferroflash-candle"])?;
    run(&["test", "--quiet", "-p", "generate", "--no-default-features"])
}

/// Runs cargo in candle's workspace, in the release profile, with all kernels and nvcc, and where they are
/// given with candle-flash-attn's own kernels beside ours.
fn with_nvcc(root: &Path, arguments: &[&str], peer: Option<&Path>) -> Result {
    peer::tests(root)?;
    let mut command = workspace(root, &toolkit::nvcc(root)?);
    let (first, rest) = arguments.split_first().ok_or("no command of cargo's")?;
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

/// cargo in candle's workspace, with somebody's nvcc.
fn workspace(root: &Path, nvcc: &toolkit::Nvcc) -> Command {
    let mut command = cargo();
    nvcc.on(&mut command);
    command.current_dir(root.join("candle")).env("CARGO_TARGET_DIR", target(root));
    command
}

/// Where candle's workspace is built: beside the root's, whose crates come with other features.
fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from).join("candle")
}
