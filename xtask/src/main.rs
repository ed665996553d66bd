//! FerroFlash's development tasks. `cargo xtask --help` lists them.

mod budgets;
mod candle;
mod ci;
mod compare;
mod evidence;
mod golden;
mod kernels;
mod pack;
mod package;
mod process;
mod python;
mod setup;
mod stats;
mod test;
mod tidy;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cuda_builder::Arch;

use process::Result;

/// FerroFlash's development tasks
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install missing tools: the device compiler, ptxas, nvdisasm, cuobjdump
    Setup,
    /// Compile the kernels to PTX and check the rules (no spill in a loop, no local depot, ...)
    BuildPtx {
        #[command(flatten)]
        build: kernels::Build,
        /// Compare the entries with the PTX files of this folder instead of checking the rules. Line numbers
        /// and comments do not count. Fails if an entry differs
        #[arg(long, value_name = "FOLDER")]
        against: Option<PathBuf>,
    },
    /// Print every entry's resources on sm_80, sm_89 and sm_90: registers, spills, shared memory, occupancy,
    /// instructions
    PtxStats(stats::Stats),
    /// Install missing tools, then run the tests on a sample of the kernels that covers every family
    Test(test::Test),
    /// Mutate every kernel in every way, and count the mutants that the simulator or the results detect.
    /// Takes days unless `--entry` or `--sample` limits it (`cargo xtask mutate -- --help`)
    Mutate(PassedOn),
    /// Solve random problems in the simulator, with a new seed (`cargo xtask fuzz -- --help`)
    Fuzz(PassedOn),
    /// Build, and compute attention on a small real input
    Demo(PassedOn),
    /// Check everything: tidy, fmt, kernels, clippy, docs, tests, packages
    Ci {
        /// Run only these steps
        steps: Vec<String>,
    },
    /// Package every published crate with its kernels, and build it from the package
    Package,
    /// Collect everything that a GPU machine without Rust needs in ./gpu-pack
    GpuPack {
        /// Instead of the program and the tests, pack a caller's variants: bench/own for variants.py, and the
        /// template's tests as `verify-template`
        #[arg(long)]
        own: bool,
    },
    /// Build the wheel of the Python package, with the library in it
    Wheel,
    /// Build or test the workspace candle/. Its build runs nvcc
    Candle {
        #[command(subcommand)]
        task: candle::Task,
    },
    /// Write what today's planner and kernels do to the golden files (tests/plans.txt, refusals.txt, golden)
    Bless,
    /// Collect docs/evidence/** and the golden figures into target/evidence: one page that needs neither GPU
    /// nor network, and its data as JSON
    Evidence,
    /// Check the invariants of ARCHITECTURE.md that the text shows
    Tidy,
    /// Assemble the kernels to machine code for sm_80, sm_86, sm_89, sm_90 and sm_90a
    BuildCubin {
        #[command(flatten)]
        build: kernels::Build,
        /// The targets, instead of all five
        #[arg(long = "for", value_name = "ARCH")]
        targets: Vec<Arch>,
    },
}

#[derive(clap::Args)]
struct PassedOn {
    /// Passed on to the program that does the task: `ferroflash-mutants`, `ferroflash fuzz` or `ferroflash
    /// demo`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result {
    let root = root(env::var_os("CARGO_MANIFEST_DIR"));
    match task {
        Task::Setup => setup::run(&root),
        Task::BuildPtx { build, against: None } => kernels::build_ptx(&root, &build),
        Task::BuildPtx { build, against: Some(folder) } => {
            compare::against(&folder, &kernels::ptx(&root, &build)?.modules)
        }
        Task::PtxStats(stats) => stats::run(&root, &stats),
        Task::Test(test) => test::run(&root, &test),
        Task::Mutate(PassedOn { arguments }) => test::mutate(&root, &arguments),
        Task::Fuzz(PassedOn { arguments }) => test::fuzz(&root, &arguments),
        Task::Demo(PassedOn { arguments }) => ci::demo(&root, &arguments),
        Task::Ci { steps } => ci::ci(&root, &steps),
        Task::Package => package::run(&root),
        Task::GpuPack { own } => pack::run(&root, own),
        Task::Wheel => python::wheel(&root),
        Task::Candle { task } => candle::run(&root, &task),
        Task::Bless => golden::bless(&root).and_then(|()| test::bless(&root)),
        Task::Evidence => evidence::run(&root),
        Task::Tidy => tidy::run(&root),
        Task::BuildCubin { build, targets } => kernels::build_cubin(
            &root,
            &build,
            if targets.is_empty() { &kernels::CUBIN_TARGETS } else { &targets },
        ),
    }
}

/// The root of the workspace, which is the parent folder of this package. `cargo run` names the package's
/// folder. The folder in which this program was compiled may be another one: a copy of a checkout may contain
/// the original's programs.
fn root(package: Option<OsString>) -> PathBuf {
    let package = package.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().unwrap_or(&package).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_copy_of_the_checkout_works_on_its_own_folder() {
        assert_eq!(root(Some("/copy/xtask".into())), Path::new("/copy"));
        assert!(root(None).join("xtask/Cargo.toml").is_file());
    }
}
