//! `cargo xtask gpu-pack`: collects in one folder everything that a GPU machine without Rust needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Result, cargo, spinner, stdout};

/// The folder, relative to the root.
const FOLDER: &str = "gpu-pack";

/// Largest size of the folder in bytes, because it is copied to rented machines.
const LIMIT: u64 = 80 << 20;

/// The program, the examples `embed` and `cudarc`, and the tests that need a GPU.
const PROGRAMS: [&str; 14] = [
    "--package",
    "ferroflash-cli",
    "--package",
    "ferroflash",
    "--bin",
    "ferroflash",
    "--example",
    "embed",
    "--example",
    "cudarc",
    "--test",
    "gpu",
    "--features",
    "ferroflash/cust,ferroflash/cudarc,ferroflash/training",
];

/// Builds the C library with the kernels' PTX, and either the program, the examples `embed` and `cudarc` and
/// the tests that need a GPU, or a caller's `own` variants. Copies all of these into the folder, beside the
/// scripts.
pub fn run(root: &Path, own: bool) -> Result {
    let pack = root.join(FOLDER);
    if pack.exists() {
        fs::remove_dir_all(&pack)?;
    }
    fs::create_dir_all(&pack)?;
    let programs = if own { variants(root)? } else { programs(root)? };
    let progress = spinner("building the C library");
    let library =
        artifacts(root, &["build", "--package", "ferroflash-cabi", "--features", "lineage,training"], "1")?;
    progress.finish_and_clear();
    let package = pack.join("python/ferroflash");
    fs::create_dir_all(&package)?;
    for (name, file) in programs {
        fs::copy(&file, pack.join(&name))?;
    }
    for (name, file) in library {
        fs::copy(&file, package.join(format!("lib{name}.so")))?;
    }
    let modules = fs::read_dir(root.join("python/ferroflash"))?.flatten();
    for module in modules.filter(|entry| entry.path().is_file()) {
        fs::copy(module.path(), package.join(module.file_name()))?;
    }
    // Both folders have a README. The README about GPU machines must replace the other.
    let scripts = ["bench", "tests/gpu"].map(|folder| fs::read_dir(root.join(folder)));
    for entry in scripts.into_iter().flatten().flatten().flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), pack.join(entry.file_name()))?;
    }
    for suites in ["suites.json", "backward.json"] {
        fs::copy(root.join("host/cli/src/bench").join(suites), pack.join(suites))?;
    }

    let commit = stdout(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root))?;
    fs::write(pack.join("about.txt"), format!("commit {commit}"))?;

    let bytes = size(&pack)?;
    if bytes > LIMIT {
        return Err(format!("{FOLDER} has {} MiB: at most {} MiB fit", bytes >> 20, LIMIT >> 20).into());
    }
    println!(
        "{FOLDER}: {:.1} MiB; copy it to the GPU machine; `./evidence.sh list` there lists the calls",
        bytes as f64 / 1048576.0
    );
    Ok(())
}

/// Builds the program, the examples, and the tests that need a GPU.
fn programs(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let progress = spinner("building the program, the examples and the GPU tests");
    // A single cargo command with one set of features compiles the library and its modules only once.
    let programs = artifacts(root, &[&["build"][..], &PROGRAMS].concat(), "1")?;
    progress.finish_and_clear();
    Ok(programs)
}

/// Builds the library of bench/own, and the template's tests.
fn variants(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let progress = spinner("building a caller's variants");
    let library = artifacts(&root.join("bench/own"), &["build"], "1")?;
    let library = library.into_iter().map(|(name, file)| (format!("lib{name}.so"), file));
    let template = root.join("examples/your-own-attention");
    let verify = artifacts(&template, &["test", "--no-run", "--test", "verify", "--features", "gpu"], "1")?;
    let verify = verify.into_iter().map(|(_, file)| ("verify-template".to_owned(), file));
    progress.finish_and_clear();
    Ok(library.chain(verify).collect())
}

/// Runs cargo, and returns the resulting executables and C libraries by target name. The files have no
/// symbols, because nobody debugs on a rented machine. `compress` is the value of FERROFLASH_COMPRESS.
pub fn artifacts(root: &Path, arguments: &[&str], compress: &str) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo();
    command.args(arguments).args(["--release", "--quiet", "--message-format=json"]).current_dir(root);
    command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("FERROFLASH_COMPRESS", compress);
    let mut found = Vec::new();
    for line in stdout(&mut command)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let libraries =
            message["filenames"].as_array().into_iter().flatten().filter_map(|file| file.as_str());
        let library = libraries.into_iter().find(|file| file.ends_with(std::env::consts::DLL_SUFFIX));
        let is_cdylib =
            message["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == "cdylib"));
        let file = message["executable"].as_str().or(library.filter(|_| is_cdylib));
        if let (Some(file), Some(name)) = (file, message["target"]["name"].as_str()) {
            found.push((name.to_owned(), PathBuf::from(file)));
        }
    }
    Ok(found)
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { size(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}
