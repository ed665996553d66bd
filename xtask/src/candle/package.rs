//! `cargo xtask candle package`: packages the published crate of candle's workspace, unpacks it outside this
//! repository, and checks it there.
//!
//! This task is separate from `cargo xtask package`, because it needs candle, and nvcc or its stand-in.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{target, toolkit};
use crate::package::{copy_sources, elsewhere};
use crate::process::{Result, cargo, quiet, spinner};
use crate::setup;

/// Name of the workspace's published crate.
const NAME: &str = "ferroflash-candle";

/// Files of the root folder that a package contains.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Largest size of the package, in bytes. The package contains only sources and no kernels.
const LIMIT: u64 = 100 << 10;

/// Packages a copy of the sources, unpacks it elsewhere, and runs its tests there. This test shows that no
/// file is missing, no path leads out of the package, and every dependency has a version.
pub fn run(root: &Path) -> Result {
    let stage = toolkit::folder(root, "stage")?;
    copy_sources(root, &stage)?;
    for name in LICENCES {
        fs::copy(root.join(name), stage.join("candle").join(NAME).join(name))?;
    }
    let made = setup::fresh_folder(&stage.join("target"))?;
    let mut package = cargo();
    // With a lock file, cargo would need `ferroflash` from a registry. The check below uses this repository's
    // crate instead.
    package.args(["package", "--allow-dirty", "--no-verify", "--exclude-lockfile", "--package", NAME]);
    quiet(package.arg("--target-dir").arg(&made).current_dir(stage.join("candle")))?;
    let file = setup::files(&made.join("package"), ".crate")?.pop().ok_or("cargo left no package")?;
    let bytes = fs::metadata(&file)?.len();
    println!("{:44} {:8.1} KiB", file.file_name().unwrap_or_default().display(), bytes as f64 / 1024.0);
    if bytes > LIMIT {
        return Err(format!("{NAME} has {} KiB: the limit is {} KiB", bytes >> 10, LIMIT >> 10).into());
    }
    let folder = std::env::temp_dir().join(format!("{NAME}-elsewhere-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let checked = check(root, &file, &folder);
    fs::remove_dir_all(&folder)?;
    checked
}

/// Unpacks the package into `folder`, and checks it there with this repository's `ferroflash`. The check uses
/// the same locked dependencies and the same profiles as this workspace.
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
    // With other profiles, cargo would build every dependency again.
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
    // No kernel runs here, so the library is built without kernels.
    check.env("FERROFLASH_PTX_DIR", toolkit::folder(root, "no-ptx")?);
    check.args(["check", "--quiet", "--all-targets", "--target-dir"]).arg(target(root));
    quiet(&mut check)?;
    progress.finish_and_clear();
    println!("the unpacked {NAME} compiles, with its tests");
    Ok(())
}
