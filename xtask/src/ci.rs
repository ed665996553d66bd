//! The tasks that run others: `test`, `demo` and `ci`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use cuda_builder::{Arch, gate};

use crate::kernels::{self, Build};
use crate::process::{Result, cargo, loud};
use crate::{evidence, package, setup, stats, tidy};

/// `cargo xtask test`: brings what is missing, then runs every test.
pub fn test(root: &Path, arguments: &[String]) -> Result {
    setup::device_compiler(root)?;
    setup::cuda_tools(root)?;
    loud(cargo().args(["test", "--workspace"]).args(arguments).current_dir(root))
}

/// `cargo xtask demo`: brings what is missing, builds, and computes attention on a small real input.
pub fn demo(root: &Path, arguments: &[String]) -> Result {
    setup::device_compiler(root)?;
    println!("building the kernels and the program");
    let run = ["run", "--quiet", "--release", "--package", "ferroflash", "--bin", "ferroflash", "--", "demo"];
    loud(cargo().args(run).args(arguments).current_dir(root))
}

/// `cargo xtask ci`: everything that must hold before a change goes in. Every step runs, and the last line says which failed.
pub fn ci(root: &Path) -> Result {
    setup::run(root)?;
    let deny = |command: &mut Command| {
        command.env("RUSTFLAGS", "-Dwarnings").env("RUSTDOCFLAGS", "-Dwarnings");
    };
    type Step<'a> = (&'static str, Box<dyn Fn() -> Result + 'a>);
    let in_root = |arguments: &'static [&'static str]| -> Box<dyn Fn() -> Result + '_> {
        Box::new(move || {
            let mut command = cargo();
            command.args(arguments).current_dir(root);
            if arguments[0] == "doc" {
                deny(&mut command);
            }
            loud(&mut command)
        })
    };
    let steps: Vec<Step<'_>> = vec![
        ("tidy", Box::new(|| tidy::run(root))),
        ("evidence", Box::new(|| evidence::check(root))),
        ("fmt", in_root(&["fmt", "--all", "--check"])),
        ("kernels", Box::new(|| kernels_hold(root))),
        (
            "clippy",
            in_root(&[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--features",
                "ferroflash/cudarc",
                "--",
                "-Dwarnings",
            ]),
        ),
        ("doc", in_root(&["doc", "--quiet", "--workspace", "--no-deps", "--features", "ferroflash/cudarc"])),
        ("test", in_root(&["test", "--quiet", "--workspace", "--no-fail-fast"])),
        ("cubins", Box::new(|| cubins_embed(root))),
        ("package", Box::new(|| package::run(root))),
    ];
    let mut failed = Vec::new();
    for (name, step) in &steps {
        let start = Instant::now();
        let outcome = step();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ci: {name}: ok ({seconds:.0} s)"),
            Err(error) => {
                println!("ci: {name}: FAILED ({seconds:.0} s)\n{error}");
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// The kernels compile without warnings, break no rule on any target, and cost what the golden figures say.
fn kernels_hold(root: &Path) -> Result {
    let output = kernels::ptx(root, &Build::all())?;
    if !output.warnings.is_empty() {
        return Err("the device crates compile with warnings".into());
    }
    let reports = kernels::reports(root, &output.modules, &kernels::TARGETS)?;
    gate::check(reports.iter().map(|(m, r)| (&m.contract, r)))?;
    stats::check(root, &reports)?;
    // Newer instructions may hide behind the target: it must at least compile.
    kernels::ptx(root, &Build { arch: Arch::Sm89, ..Build::all() })?;
    Ok(())
}

/// The feature `cubins` takes machine code as `build-cubin` makes it. Two kernels of the table stand for all, whose machine code takes minutes:
/// one that attends and one that merges slices.
fn cubins_embed(root: &Path) -> Result {
    let output = kernels::ptx(root, &Build::all())?;
    let folder = root.join("target/ci-cubins");
    let ptx = folder.join("source");
    if ptx.is_dir() {
        // The folder is all that the library will carry: nothing of an older table may stay.
        fs::remove_dir_all(&ptx)?;
    }
    fs::create_dir_all(&ptx)?;
    let ends = [output.modules.first(), output.modules.last()];
    let modules: Vec<_> = ends.into_iter().flatten().collect();
    for module in &modules {
        fs::write(ptx.join(&module.contract.symbol).with_extension("ptx"), &module.text)?;
    }
    kernels::cubins(root, &modules, &kernels::CUBIN_TARGETS, &folder)?;
    let test = ["test", "--quiet", "--package", "ferroflash", "--no-default-features", "--features", "cubins", "--lib"];
    let folders = [("FERROFLASH_PTX_DIR", &ptx), ("FERROFLASH_CUBIN_DIR", &folder)];
    loud(cargo().args(test).arg("image::").envs(folders).current_dir(root))
}
