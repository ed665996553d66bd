//! Builds the test programs of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::queue::{Job, Kind};
use crate::process::{Result, cargo, stdout};

/// The optional features of the library that tests and lints need. All tasks use the same features, so that
/// nothing is built twice.
pub const FEATURES: &str = "ferroflash/cust,ferroflash/cudarc";

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
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds every test program of these packages in this environment.
pub fn build(root: &Path, environment: &Environment, packages: &[&str]) -> Result<Vec<Job>> {
    let mut command = cargo();
    command
        .arg("test")
        .args(packages)
        .args(["--features", FEATURES, "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .envs(environment.clone())
        .stderr(Stdio::inherit());
    let output = command.output()?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    // The tests of a macro crate link to the libraries of the compiler.
    let libraries = [PathBuf::from(
        stdout(Command::new("rustc").args(["--print", "target-libdir"]).current_dir(root))?.trim(),
    )];
    let mut jobs = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let Ok(Artifact { manifest_path, target, profile, executable: Some(executable) }) =
            serde_json::from_str(line)
        else {
            continue;
        };
        if !profile.test {
            continue;
        }
        let package = manifest_path.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let package = package.map(|folder| folder.display().to_string()).unwrap_or_default();
        let is_integration = target.kind.iter().any(|kind| kind == "test");
        let name = if is_integration { format!("{package}/tests/{}", target.name) } else { package };
        let command = program(&executable, &manifest_path, &libraries)?;
        jobs.push(Job { name, kind: Kind::Program, command });
    }
    Ok(jobs)
}

/// The command that runs a test program as cargo would.
fn program(executable: &Path, manifest: &Path, libraries: &[PathBuf]) -> Result<Command> {
    let package = manifest.parent().ok_or("a manifest lies in a folder")?;
    let mut command = Command::new(executable);
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let path = libraries.iter().cloned().chain(std::env::split_paths(&inherited));
    command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
    command.env("LD_LIBRARY_PATH", std::env::join_paths(path.filter(|p| !p.as_os_str().is_empty()))?);
    Ok(command)
}
