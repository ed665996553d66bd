//! FerroFlash's tasks. `cargo xtask --help` lists them.

mod budgets;
mod calibration;
mod candle;
mod ci;
mod compare;
mod evidence;
mod kernels;
mod pack;
mod package;
mod process;
mod setup;
mod stats;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cuda_builder::Arch;

use process::Result;

/// FerroFlash's tasks
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Bring what is missing: the device compiler, ptxas, nvdisasm, cuobjdump
    Setup,
    /// Compile the kernels to PTX and hold them against the rules (no spill in a loop, no local depot, ...)
    BuildPtx {
        #[command(flatten)]
        build: kernels::Build,
        /// Compare the entries with the PTX files of this folder, line numbers and comments apart, instead of
        /// with the rules; fails where one is different
        #[arg(long, value_name = "FOLDER")]
        against: Option<PathBuf>,
    },
    /// Show what every entry costs on sm_80, sm_89 and sm_90: registers, spills, shared memory, occupancy,
    /// instructions
    PtxStats(stats::Stats),
    /// Bring what is missing, then run the tests, on a sample of the kernels that stands for all
    Test(test::Test),
    /// Break every kernel in every way, and count what the simulator and the results notice: for days, where
    /// `--entry` or `--sample` does not say less (`cargo xtask mutate -- --help`)
    Mutate {
        /// Passed on to `ferroflash-mutants`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Solve random problems in the simulator, by a seed that nobody has used (`cargo xtask fuzz -- --help`)
    Fuzz {
        /// Passed on to `ferroflash fuzz`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Bring what is missing, build, and compute attention on a small real input
    Demo {
        /// Passed on to `ferroflash demo`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Check everything: tidy, fmt, kernels, clippy, docs, tests, packages
    Ci,
    /// Package every published crate, kernels inside, and build it from the package
    Package,
    /// Gather in ./gpu-pack what a GPU machine without Rust needs
    GpuPack,
    /// What stands on candle, in candle/: a workspace of its own, whose build runs nvcc
    Candle {
        #[command(subcommand)]
        task: candle::Task,
    },
    /// Take today's figures over as the golden ones (tests/golden)
    Bless,
    /// Gather docs/evidence/** into one page that needs no GPU and no network, and its data as JSON
    Evidence(evidence::Evidence),
    /// Check the invariants of ARCHITECTURE.md that can be read off the text
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
    let root = root();
    match task {
        Task::Setup => setup::run(&root),
        Task::BuildPtx { build, against: None } => kernels::build_ptx(&root, &build),
        Task::BuildPtx { build, against: Some(folder) } => {
            compare::against(&folder, &kernels::ptx(&root, &build)?.modules)
        }
        Task::PtxStats(stats) => stats::run(&root, &stats),
        Task::Test(test) => test::run(&root, &test),
        Task::Mutate { arguments } => test::mutate(&root, &arguments),
        Task::Fuzz { arguments } => test::fuzz(&root, &arguments),
        Task::Demo { arguments } => ci::demo(&root, &arguments),
        Task::Ci => ci::ci(&root),
        Task::Package => package::run(&root),
        Task::GpuPack => pack::run(&root),
        Task::Candle { task } => candle::run(&root, &task),
        Task::Bless => stats::bless(&root),
        Task::Evidence(evidence) => evidence::run(&root, &evidence),
        Task::Tidy => tidy::run(&root),
        Task::BuildCubin { build, targets } => kernels::build_cubin(
            &root,
            &build,
            if targets.is_empty() { &kernels::CUBIN_TARGETS } else { &targets },
        ),
    }
}

/// The workspace root: this package's parent.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}
