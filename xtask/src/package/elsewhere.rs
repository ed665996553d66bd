//! The promise to who embeds FerroFlash: the packages build outside this repository, on stable Rust with no device compiler and no CUDA, the
//! kernels inside, and without a dependency that only the program needs.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::Package;
use crate::process::{Result, cargo, quiet, spinner, stdout};

/// The crate that is embedded.
const EMBEDDED: &str = "ferroflash";

/// Seconds that its first build may take, by the promise: on two idle cores, downloads included.
const PROMISED: f64 = 60.0;

/// Seconds beyond which a busy machine is no excuse.
const MOST: f64 = 120.0;

/// What a build elsewhere inherits: where tools and registries are. Nothing of CUDA, of this repository or of the cargo that runs this task.
const KEPT: [&str; 12] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "CARGO_HTTP_CAINFO",
    "CARGO_HTTP_PROXY",
    "CARGO_NET_OFFLINE",
    "HTTPS_PROXY",
    "https_proxy",
    "SSL_CERT_FILE",
];

/// A program that finds the PTX of every kernel in the table inside itself.
const PROGRAM: &str = r#"
fn main() {
    for entry in ferroflash::ENTRIES {
        let text = ferroflash::ptx::source(entry.symbol).expect(entry.symbol);
        assert!(text.contains(&format!(".entry {}(", entry.symbol)), "{}", entry.symbol);
    }
    println!("{} kernels inside", ferroflash::ENTRIES.len());
}
"#;

/// Unpacks what `cargo package` left in `crates` into a folder of its own outside the repository, and builds and runs a program there that
/// depends on it, with `features` and without the default ones.
pub fn check(packages: &[Package], crates: &Path, features: &[&str]) -> Result {
    let folder = std::env::temp_dir().join(format!("ferroflash-elsewhere-{}", std::process::id()));
    let checked = embed(packages, crates, features, &folder);
    fs::remove_dir_all(&folder)?;
    checked
}

fn embed(packages: &[Package], crates: &Path, features: &[&str], folder: &Path) -> Result {
    let dependent = folder.join("dependent");
    fs::create_dir_all(dependent.join("src"))?;
    for package in packages {
        let file = crates.join(format!("{}.crate", package.full_name()));
        quiet(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(folder))?;
    }
    fs::write(dependent.join("Cargo.toml"), manifest(packages, features)?)?;
    fs::write(dependent.join("src/main.rs"), PROGRAM)?;

    let progress = spinner("building a program elsewhere that embeds the package");
    let start = Instant::now();
    let said = stdout(elsewhere(&dependent).args(["run", "--quiet", "--jobs", "2"]))?;
    let seconds = start.elapsed().as_secs_f64();
    progress.finish_and_clear();

    let dependencies = dependencies(&dependent)?;
    let named = dependencies.iter().cloned().collect::<Vec<_>>().join(", ");
    println!("embedded elsewhere: {}, built in {seconds:.0} s on 2 cores, with {named}", said.trim());
    let embedded = packages.iter().filter(|package| package.name == EMBEDDED);
    let optional = embedded.flat_map(|package| &package.dependencies).filter(|dependency| dependency.optional);
    if let Some(pulled) = optional.map(|dependency| &dependency.name).find(|name| dependencies.contains(*name)) {
        return Err(format!("{EMBEDDED} without default features depends on {pulled}; only a feature may").into());
    }
    if seconds > MOST {
        return Err(format!("{EMBEDDED} builds in {seconds:.0} s elsewhere; {PROMISED} are promised").into());
    }
    if seconds > PROMISED {
        println!("note: {PROMISED} s are promised; is the machine busy?");
    }
    Ok(())
}

/// The manifest of a workspace of its own, in which the unpacked packages stand for those of the registry.
fn manifest(packages: &[Package], features: &[&str]) -> Result<String> {
    let mut text = String::from("[workspace]\n[package]\nname = \"dependent\"\nedition = \"2024\"\n[dependencies]\n");
    writeln!(text, "{EMBEDDED} = {{ version = \"*\", default-features = false, features = {features:?} }}")?;
    text.push_str("[patch.crates-io]\n");
    for package in packages {
        writeln!(text, "{} = {{ path = \"../{}\" }}", package.name, package.full_name())?;
    }
    Ok(text)
}

/// The names of all packages that become part of the program.
fn dependencies(dependent: &Path) -> Result<BTreeSet<String>> {
    let tree = stdout(elsewhere(dependent).args(["tree", "--edges", "normal", "--prefix", "none"]))?;
    let names = tree.lines().filter_map(|line| line.split(' ').next()).filter(|name| *name != "dependent");
    Ok(names.map(str::to_owned).collect())
}

/// Cargo in `folder`, with a clean environment.
fn elsewhere(folder: &Path) -> Command {
    let kept = KEPT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = cargo();
    command.env_clear().envs(kept).env("CARGO_TERM_COLOR", "never").current_dir(folder);
    command
}
