//! `cargo xtask candle package`: the published crate of candle's workspace, packaged, and checked as it was
//! unpacked, outside this repository.
//!
//! Beside what `cargo xtask package` does for the others, since it wants candle, and an nvcc or its stand-in.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{target, toolkit};
use crate::package::{copy_sources, elsewhere};
use crate::process::{Result, cargo, quiet, spinner};
use crate::setup;

/// What is published of the workspace.
const NAME: &str = "ferroflash-candle";

/// What a package carries that lies at the root.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// What it may weigh, in bytes: sources alone, no kernels.
const LIMIT: u64 = 100 << 10;

/// Packages a copy of the sources, unpacks that elsewhere, and checks it there with its tests: no file is
/// missing, no path leads out of it, every dependency has a version.
pub fn run(root: &Path) -> Result {
    let stage = toolkit::folder(root, "stage")?;
    copy_sources(root, &stage)?;
    for name in LICENCES {
        fs::copy(root.join(name), stage.join("candle").join(NAME).join(name))?;
    }
    let made = setup::fresh_folder(&stage.join("target"))?;
    let mut package = cargo();
    // A lock file would want `ferroflash` of a registry; the check below has this repository's instead.
    package.args(["package", "--allow-dirty", "--no-verify", "--exclude-lockfile", "--package", NAME]);
    quiet(package.arg("--target-dir").arg(&made).current_dir(stage.join("candle")))?;
    let file = setup::files(&made.join("package"), ".crate")?.pop().ok_or("cargo left no package")?;
    let bytes = fs::metadata(&file)?.len();
    println!("{:44} {:8.1} KiB", file.file_name().unwrap_or_default().display(), bytes as f64 / 1024.0);
    if bytes > LIMIT {
        return Err(format!("{NAME} has {} KiB; at most {} are expected", bytes >> 10, LIMIT >> 10).into());
    }
    let folder = std::env::temp_dir().join(format!("{NAME}-elsewhere-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let checked = check(root, &file, &folder);
    fs::remove_dir_all(&folder)?;
    checked
}

/// Unpacks it into `folder`, and checks it there with this repository's `ferroflash`, with dependencies as
/// they are locked and built here.
fn check(root: &Path, file: &Path, folder: &Path) -> Result {
    quiet(Command::new("tar").arg("-xzf").arg(file).arg("-C").arg(folder))?;
    let unpacked = folder.join(file.file_stem().unwrap_or_default());
    for name in LICENCES.into_iter().chain(["README.md"]) {
        if !unpacked.join(name).is_file() {
            return Err(format!("{NAME} is packaged without {name}").into());
        }
    }
    let candle = root.join("candle");
    let workspace = fs::read_to_string(candle.join("Cargo.toml"))?;
    // Other profiles would be other builds of every dependency.
    let profiles = workspace.find("[profile").map_or("", |at| &workspace[at..]);
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{:?}]\n[patch.crates-io]\nferroflash = {{ path = {:?} }}\n\
         {profiles}",
        unpacked,
        root.join("host")
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(candle.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let progress = spinner("checking the unpacked package");
    let mut check = elsewhere(folder);
    toolkit::stand_in(root)?.on(&mut check);
    // Nothing runs a kernel: the library does without.
    check.env("FERROFLASH_PTX_DIR", toolkit::folder(root, "no-ptx")?);
    check.args(["check", "--quiet", "--all-targets", "--target-dir"]).arg(target(root));
    quiet(&mut check)?;
    progress.finish_and_clear();
    println!("the unpacked {NAME} compiles, with its tests");
    Ok(())
}
