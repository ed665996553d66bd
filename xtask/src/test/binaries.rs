//! The test programs of the workspace, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::queue::{Job, Kind};
use super::{Environment, FEATURES};
use crate::process::{Result, cargo, stdout};

/// A line of cargo's output, where it is of a program.
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

/// Builds every test program of the workspace in this environment.
pub fn build(root: &Path, environment: &Environment) -> Result<Vec<Job>> {
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--features", FEATURES, "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .envs(environment.clone())
        .stderr(Stdio::inherit());
    let output = command.output()?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    // A macro's tests are linked to the compiler's own libraries.
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
        let command = super::program(&executable, &manifest_path, &libraries)?;
        jobs.push(Job { name, kind: Kind::Program, command });
    }
    Ok(jobs)
}
