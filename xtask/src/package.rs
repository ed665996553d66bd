//! `cargo xtask package`: packages the published crates, and builds from the packages.
//!
//! The published `ferroflash` contains its compiled kernels, as a checkout does, so that users need no device
//! compiler. This task adds licences and README to a copy of the sources.

mod elsewhere;

pub use elsewhere::elsewhere;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_builder::{Arch, Module, lines};

use crate::budgets;
use crate::kernels::{self, Build, carried, kept};
use crate::process::{Result, cargo, quiet, spinner, stdout};

/// The targets whose machine code a package contains: the L4, and the H100 and H200 with the instructions of
/// sm_90a. Machine code of one GPU generation takes a quarter of a registry's limit, and the PTX takes almost
/// half. A third generation does not fit.
const CARRIED: [Arch; 3] = [Arch::Sm89, Arch::Sm90, Arch::Sm90a];

/// A published workspace member, as `cargo metadata` describes it.
#[derive(serde::Deserialize)]
struct Package {
    name: String,
    version: String,
    manifest_path: PathBuf,
    /// The registries to which the member may be published. An empty list means `publish = false`.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(serde::Deserialize)]
struct Dependency {
    name: String,
    optional: bool,
}

impl Package {
    /// The name of the package's folder and file: name and version.
    fn full_name(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

#[derive(serde::Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// Packages every published crate into `target/package-stage/target/<sources>/package`, checks each unpacked
/// package, and builds `ferroflash` as a user's program would.
pub fn run(root: &Path) -> Result {
    let output = kernels::ptx(root, &Build::all())?;
    carried::folder(root)?;
    let stage = root.join("target/package-stage");
    // Cargo unpacks each version of a package once per build folder, so each state of the sources needs its
    // own folder.
    let target = stage.join("target").join(format!("{:016x}", copy_sources(root, &stage)?));
    remove_others(&target)?;

    let carries_cubins = carry_cubins(root, &stage, &output.modules)?;
    let metadata =
        stdout(cargo().args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(&stage))?;
    let Metadata { mut packages } = serde_json::from_str(&metadata)?;
    packages.retain(|p| p.publish.as_ref().is_none_or(|registries| !registries.is_empty()));
    for package in &packages {
        let folder = package.manifest_path.parent().unwrap_or(&stage);
        for name in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
            if root.join(name).is_file() && !folder.join(name).exists() {
                fs::copy(root.join(name), folder.join(name))?;
            }
        }
    }

    let progress = spinner("packaging");
    let mut command = cargo();
    // Cargo's own verification would compile every dependency again for each package. `elsewhere` checks all
    // packages together instead.
    command
        .args(["package", "--allow-dirty", "--no-verify", "--target-dir"])
        .arg(&target)
        .current_dir(&stage);
    for package in &packages {
        command.args(["--package", &package.name]);
    }
    quiet(&mut command)?;
    progress.finish_and_clear();
    let mut largest = 0;
    for package in &packages {
        let file = format!("{}.crate", package.full_name());
        let bytes = fs::metadata(target.join("package").join(&file))?.len();
        println!("{file:44} {:8.1} KiB", bytes as f64 / 1024.0);
        largest = largest.max(bytes);
    }
    let most = if carries_cubins { budgets::PACKAGE_WITH_CUBINS_MB } else { budgets::PACKAGE_MB };
    budgets::hold("the largest package", largest as f64 / 1e6, most, "MB")?;
    elsewhere::check(root, &packages, &target.join("package"), if carries_cubins { &["cubins"] } else { &[] })
}

/// If machine code of `cargo xtask build-cubin` was made from this PTX, puts it into the package. Returns
/// whether the package has machine code. Without machine code, the feature `cubins` does not build from the
/// package.
fn carry_cubins(root: &Path, stage: &Path, modules: &[Module]) -> Result<bool> {
    let (made, carried) = (root.join("target/cubin"), stage.join("host/cubins"));
    for module in modules {
        let theirs = made.join("ptx").join(module.contract.symbol).with_extension("ptx");
        if !fs::read_to_string(theirs).is_ok_and(|ptx| ptx == lines::split(&module.text).0) {
            println!("the package has no machine code: run `cargo xtask build-cubin` first to add it");
            return Ok(false);
        }
    }
    for target in CARRIED {
        fs::create_dir_all(carried.join(target.name()))?;
        let is_meant = |kernel: &spec::Contract| {
            Arch::of(kernel.target).is_some_and(|compiled| compiled.assembles_for(target))
        };
        for kernel in spec::kernels().filter(is_meant) {
            let file = Path::new(target.name()).join(format!("{}.cubin.lzma", kernel.symbol));
            if !kept::is_whole(&made.join(&file)) {
                let remedy = "run `cargo xtask build-cubin` to make it anew";
                return Err(format!("target/cubin/{}: missing or damaged; {remedy}", file.display()).into());
            }
            fs::copy(made.join(&file), carried.join(&file))?;
        }
    }
    Ok(true)
}

/// Removes the build folders of all states of the sources, except for `target`.
fn remove_others(target: &Path) -> Result {
    for entry in target.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten() {
        if entry.path().is_dir() && entry.path() != target {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Copies the files that git tracks or would add into `stage`, keeps the build folders there, and returns a
/// hash of the sources. Unchanged files keep their modification times.
pub fn copy_sources(root: &Path, stage: &Path) -> Result<u64> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let files = stdout(&mut git)?;
    let mut sources = DefaultHasher::new();
    for entry in fs::read_dir(stage).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_name() == "target" {
            true => {}
            false if path.is_dir() => fs::remove_dir_all(path)?,
            false => fs::remove_file(path)?,
        }
    }
    for name in files.lines().filter(|name| root.join(name).is_file()) {
        let (from, to) = (root.join(name), stage.join(name));
        fs::create_dir_all(to.parent().unwrap_or(stage))?;
        fs::copy(&from, &to)?;
        let modified = fs::metadata(&from)?.modified()?;
        fs::File::options().append(true).open(&to)?.set_modified(modified)?;
        (name, fs::read(&to)?).hash(&mut sources);
    }
    Ok(sources.finish())
}
