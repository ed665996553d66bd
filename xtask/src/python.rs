//! `cargo xtask wheel` and ci's step `python`: the Python package as a wheel, and its tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Result, loud, quiet};
use crate::{budgets, pack, setup, test};

/// The wheels, relative to the root.
const WHEELS: &str = "target/wheels";

/// `cargo xtask wheel`: builds the library with the backward pass and the simulator, and a wheel that carries
/// it.
pub fn wheel(root: &Path) -> Result {
    let build = ["build", "--package", "ferroflash-cabi", "--features", "sim,training"];
    // Without source lines, the simulator's reports name instructions only.
    let (_, library) = pack::artifacts(root, &build, "code")?.pop().ok_or("cargo built no library")?;
    let wheel = package(root, &library)?;
    println!("{}", wheel.display());
    budgets::hold("wheel", fs::metadata(&wheel)?.len() as f64 / 1e6, budgets::WHEEL_MB, "MB")
}

/// Installs a wheel with the library of the tests, and runs the package's tests in the simulator.
pub fn check(root: &Path) -> Result {
    let wheel = package(root, &test::library_with_simulator(root)?)?;
    let site = setup::fresh_folder(&root.join("target/python"))?;
    let mut pip = pip("install");
    pip.arg("--target").arg(&site).arg(format!("{}[test]", wheel.display()));
    quiet(&mut pip)?;
    let mut pytest = Command::new("python3");
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests"]);
    pytest.env("PYTHONPATH", &site).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("FERROFLASH_LIBRARY");
    loud(pytest.current_dir(root))
}

/// Builds the wheel that carries a library.
fn package(root: &Path, library: &Path) -> Result<PathBuf> {
    let wheels = setup::fresh_folder(&root.join(WHEELS))?;
    let carried = root.join("python/ferroflash/libferroflash_c.so");
    fs::copy(library, &carried)?;
    let mut pip = pip("wheel");
    pip.args(["--no-deps", "--wheel-dir"]).arg(&wheels).arg(root.join("python"));
    let built = quiet(&mut pip);
    // A checkout's package loads the library that FERROFLASH_LIBRARY names.
    fs::remove_file(&carried)?;
    built?;
    Ok(setup::files(&wheels, ".whl")?.pop().ok_or("pip built no wheel")?)
}

/// A command of pip.
fn pip(command: &str) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check"]);
    pip
}
