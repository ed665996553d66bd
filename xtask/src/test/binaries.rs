//! Builds the test programs of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::queue::Job;
use crate::process::{Result, cargo, stdout};

/// The optional features of the library that tests and lints need. All tasks use the same features, so that
/// nothing is built twice.
pub const FEATURES: &str = "ferroflash/cust,ferroflash/cudarc";

/// The features of the tests. No test runs on the host what `kernels-gpu` adds by default: the entries, which
/// take half a minute to compile. The tests enable the defaults of the other crates.
pub const SELECTED: [&str; 3] = ["--no-default-features", "--features", FEATURES];

/// The environment variable that limits the library's build to the sample. `None` builds the library with all
/// kernels.
pub type Environment = Option<(&'static str, PathBuf)>;

/// A line of cargo's output that describes a program.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    src_path: PathBuf,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs `cargo test --no-run` with these arguments and [`SELECTED`], and returns the programs.
fn programs(root: &Path, environment: &Environment, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let mut command = cargo();
    command
        .arg("test")
        .args(arguments)
        .args(SELECTED)
        .arg("--no-run")
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .envs(environment.clone())
        .stderr(Stdio::inherit());
    let output = command.output()?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    let output = String::from_utf8(output.stdout)?;
    let artifacts = output.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    Ok(artifacts.filter(|artifact| artifact.executable.is_some()).collect())
}

/// The program `name` of the package with the test program `test`, from the build of all tests.
pub fn program_beside(root: &Path, test: &str, name: &str) -> Result<PathBuf> {
    let found = programs(root, &None, &["--quiet", "--workspace", "--test", test])?;
    let found = found.into_iter().find(|artifact| artifact.target.name == name && !artifact.profile.test);
    let found = found.and_then(|artifact| artifact.executable);
    Ok(found.ok_or_else(|| format!("cargo builds no program {name} beside the test {test}"))?)
}

/// Builds every test program of the workspace in this environment.
pub fn build(root: &Path, environment: &Environment) -> Result<Vec<Job>> {
    let artifacts = programs(root, environment, &["--workspace"])?;
    // The tests of a macro crate link to the libraries of the compiler.
    let libraries = [PathBuf::from(
        stdout(Command::new("rustc").args(["--print", "target-libdir"]).current_dir(root))?.trim(),
    )];
    let mut jobs = Vec::new();
    for Artifact { manifest_path, target, profile, executable } in artifacts {
        let Some(executable) = executable.filter(|_| profile.test) else { continue };
        let is_integration = target.kind.iter().any(|kind| kind == "test");
        // A program of integration tests has its file's name, and one of unit tests has its package's folder.
        let place = if is_integration { target.src_path.with_extension("") } else { folder(&manifest_path) };
        let name = place.strip_prefix(root).unwrap_or(&place).display().to_string();
        let command = program(&executable, &manifest_path, &libraries)?;
        jobs.push(Job::new(name, command));
    }
    Ok(jobs)
}

/// The command that runs a test program as cargo would.
fn program(executable: &Path, manifest: &Path, libraries: &[PathBuf]) -> Result<Command> {
    let package = folder(manifest);
    let mut command = Command::new(executable);
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let path = libraries.iter().cloned().chain(std::env::split_paths(&inherited));
    command.current_dir(&package).env("CARGO_MANIFEST_DIR", &package);
    command.env("LD_LIBRARY_PATH", std::env::join_paths(path.filter(|p| !p.as_os_str().is_empty()))?);
    Ok(command)
}

/// The folder of a manifest.
fn folder(manifest: &Path) -> PathBuf {
    manifest.parent().unwrap_or(manifest).to_owned()
}
