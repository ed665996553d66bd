//! Checks the promise to users: the packages build outside this repository, on stable Rust, without device
//! compiler and without CUDA. The packages contain the kernels, and no dependency that only the program
//! needs.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::Package;
use crate::process::{Result, cargo, quiet, spinner, stdout};

/// Name of the crate on which users depend.
const EMBEDDED: &str = "ferroflash";

/// The promised limit of the first build of that crate, in seconds, on two idle cores, including downloads.
const PROMISED: f64 = 60.0;

/// The limit of this build, in seconds, if the machine is busy.
const MOST: f64 = 120.0;

/// The environment variables that a build elsewhere inherits. These variables name the places of tools and
/// registries. The build inherits no other environment variable: none about CUDA, none about this repository,
/// and none of the cargo that runs this task.
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

/// A user's first program. The program plans for a card, names a kernel by type, and checks that it contains
/// the PTX of every kernel of the table.
const PROGRAM: &str = r#"
use ferroflash::configuration::Entry;
use ferroflash::{Attention, Capabilities, DType, Error};
use ferroflash::driver::RawDriver;
use ferroflash::kernels::Prepared;
use ferroflash::request::{AttentionRequest, Mask, TensorView};

/// `open` uses the planner, which selects kernels; `typed` loads a kernel by its type. The program names no
/// other crate.
pub fn open() -> Result<Attention<RawDriver>, Error> {
    Ok(Attention::new(RawDriver::primary(0)?))
}
pub fn typed<K: Entry>(driver: &RawDriver) -> Result<Prepared<K, RawDriver>, Error> {
    Prepared::new(driver)
}

fn main() {
    let (shape, elements) = ([2, 1024, 16, 128], 2 * 1024 * 16 * 128);
    let view = |n: u64| TensorView::bshd(n << 32, elements, DType::F16, shape);
    let forward = AttentionRequest::dense(view(1), view(2), view(3), view(4)).mask(Mask::Causal);
    for (name, card) in Capabilities::PROFILES {
        ferroflash::plan(&forward, card).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    if let Err(error) = open() {
        assert!(matches!(error, Error::Driver { .. }), "without a GPU, an error: {error}");
    }
    for entry in ferroflash::kernels::entries() {
        let text = ferroflash::ptx::source(entry.contract.symbol).expect(entry.contract.symbol);
        assert!(text.contains(&format!(".entry {}(", entry.contract.symbol)), "{}", entry.contract.symbol);
    }
    println!("{} kernels inside", ferroflash::kernels::entries().count());
}
"#;

/// Unpacks the packages in `crates` into a folder outside of the repository. Checks every package there, with
/// the dependencies that the repository has already compiled. Builds and runs a program that depends on
/// `ferroflash` with the default features and with `features`.
pub fn check(root: &Path, packages: &[Package], crates: &Path, features: &[&str]) -> Result {
    let folder = std::env::temp_dir().join(format!("ferroflash-elsewhere-{}", std::process::id()));
    let unpacked = unpack(packages, crates, &folder);
    let checked = unpacked
        .and_then(|()| check_all(root, packages, &folder))
        .and_then(|()| embed(packages, features, &folder));
    fs::remove_dir_all(&folder)?;
    checked
}

fn unpack(packages: &[Package], crates: &Path, folder: &Path) -> Result {
    fs::create_dir_all(folder)?;
    for package in packages {
        let file = crates.join(format!("{}.crate", package.full_name()));
        // Files get the current time instead of the fixed time in the archive, because cargo would otherwise
        // reuse the output of other files.
        quiet(Command::new("tar").arg("-xzmf").arg(&file).arg("-C").arg(folder))?;
    }
    Ok(())
}

/// Checks that every unpacked package compiles, so that no file is missing, and no path leads out of the
/// package.
fn check_all(root: &Path, packages: &[Package], folder: &Path) -> Result {
    let members: Vec<_> = packages.iter().map(Package::full_name).collect();
    let mut manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n[profile.dev]\ndebug = \"line-tables-only\"\n"
    );
    patches(&mut manifest, packages, "")?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let progress = spinner("checking the unpacked packages");
    let mut check = elsewhere(folder);
    quiet(check.args(["check", "--quiet", "--workspace", "--target-dir"]).arg(root.join("target")))?;
    progress.finish_and_clear();
    Ok(())
}

fn embed(packages: &[Package], features: &[&str], folder: &Path) -> Result {
    let dependent = folder.join("dependent");
    fs::create_dir_all(dependent.join("src"))?;
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
    let optional =
        embedded.flat_map(|package| &package.dependencies).filter(|dependency| dependency.optional);
    if let Some(pulled) =
        optional.map(|dependency| &dependency.name).find(|name| dependencies.contains(*name))
    {
        return Err(format!("{EMBEDDED} depends on {pulled} by default: only a feature may").into());
    }
    if seconds > MOST {
        return Err(
            format!("{EMBEDDED} builds in {seconds:.0} s elsewhere: the promise is {PROMISED} s").into()
        );
    }
    if seconds > PROMISED {
        println!("note: the promised limit is {PROMISED} s; the machine may be busy");
    }
    Ok(())
}

/// The manifest of a separate workspace in which the unpacked packages replace the packages of the registry.
fn manifest(packages: &[Package], features: &[&str]) -> Result<String> {
    let mut text =
        String::from("[workspace]\n[package]\nname = \"dependent\"\nedition = \"2024\"\n[dependencies]\n");
    writeln!(text, "{EMBEDDED} = {{ version = \"*\", features = {features:?} }}")?;
    patches(&mut text, packages, "../")?;
    Ok(text)
}

/// Adds lines to a manifest by which the unpacked packages at `from` replace the packages of the registry.
fn patches(manifest: &mut String, packages: &[Package], from: &str) -> Result {
    manifest.push_str("[patch.crates-io]\n");
    for package in packages {
        writeln!(manifest, "{} = {{ path = \"{from}{}\" }}", package.name, package.full_name())?;
    }
    Ok(())
}

/// The names of all packages in the program's build.
fn dependencies(dependent: &Path) -> Result<BTreeSet<String>> {
    let tree = stdout(elsewhere(dependent).args(["tree", "--edges", "normal", "--prefix", "none"]))?;
    let names = tree.lines().filter_map(|line| line.split(' ').next()).filter(|name| *name != "dependent");
    Ok(names.map(str::to_owned).collect())
}

/// A command that runs cargo in `folder` with a clean environment.
pub fn elsewhere(folder: &Path) -> Command {
    let kept = KEPT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = cargo();
    command.env_clear().envs(kept).env("CARGO_TERM_COLOR", "never").current_dir(folder);
    command
}
