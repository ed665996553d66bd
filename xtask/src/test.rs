//! `cargo xtask test`: compiles a sample of the kernels, or all kernels, and runs every test program of the
//! workspace on all cores.

mod binaries;
mod queue;
mod sampled;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, UNIX_EPOCH};

use clap::Args;

use crate::kernels::{self, Build};
use crate::process::{Result, cargo, loud};
use crate::{budgets, setup};
pub use binaries::FEATURES;
use binaries::{Environment, SELECTED};
use queue::{DOCUMENTATION, Job};
pub use sampled::Sampled;

/// The folder of the sample's modules, from which the library is built.
const SAMPLE: &str = "target/sample-ptx";

/// The folder of the notes of tests that miss kernels of the sample.
const NOTES: &str = "target/sample-notes";

/// The environment variable that names the folder from which the library's build takes its modules.
const PTX_DIR: &str = "FERROFLASH_PTX_DIR";

/// The environment variable with the folder of the modules that tests may use, although their build embeds
/// more.
const TEST_KERNELS: &str = "FERROFLASH_TEST_KERNELS";

/// The environment variable that makes tests of random problems draw more problems, and mutation tests of
/// device data try more kernels.
const THOROUGH: &str = "FERROFLASH_TEST_ALL";

/// The environment variable that tells tests that the build of all tests has just built the examples.
const EXAMPLES_BUILT: &str = "FERROFLASH_EXAMPLES_BUILT";

/// Tests of [`LAUNCHING`] that run on all kernels later, and not on the sample: each kernel on its edge
/// cases, mutants of kernels (51 s on the sample), and random mixtures (15 s). They select kernels as the
/// other tests do, so the other tests find out whether the sample lacks a kernel. The last two read every
/// embedded kernel and every line of the table (26 s), on the sample, too.
const LATER: [&str; 6] = [
    "every_kernel_on_its_edges",
    "that_is_missing_is_noticed",
    "a_kernel_that_takes_others_sequences_is_noticed",
    "sequences_have_the_bits_of_their_own_launches",
    "every_instruction_of_every_kernel_is_known",
    "every_case_is_solved_by_the_entry_that_it_is_for",
];

/// The folders of the test programs that launch kernels.
const LAUNCHING: [&str; 2] = ["host/cli", "tests/tests"];

/// The test programs of which no test runs again after [`on_sample`]. They start the program `ferroflash`,
/// whose notes name none of their tests, and they name kernels that the sample has.
const SAMPLE_SUFFICES: [&str; 1] = ["host/cli/tests/program/main"];

/// What to test
#[derive(Args)]
pub struct Test {
    /// Compile and test every kernel of the table, not only the sample
    #[arg(long)]
    all: bool,
    /// Run only the tests that need a GPU
    #[arg(long, conflicts_with = "all")]
    gpu: bool,
    /// Passed on to `cargo test`, which then runs only the named tests
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Installs missing tools, then tests.
pub fn run(root: &Path, test: &Test) -> Result {
    setup::device_compiler(root)?;
    setup::cuda_tools(root)?;
    if test.gpu {
        let features = format!("{FEATURES},ferroflash/training");
        let gpu = ["test", "--package", "ferroflash", "--test", "gpu", "--features", &features];
        let gpu = cargo().args(gpu).args(["--", "--ignored", "--nocapture"]).current_dir(root).status()?;
        return if gpu.success() { Ok(()) } else { Err("tests on this machine's GPU failed".into()) };
    }
    if test.arguments.is_empty() {
        let minutes = budgets::TEST_MINUTES;
        match test.all {
            false => println!(
                "testing a sample of the kernels: {:.0} minutes on two idle cores with nothing compiled \
                 (`--all` tests every kernel, in half an hour)",
                minutes / 2.0
            ),
            true => println!("testing every kernel: half an hour on two idle cores with nothing compiled"),
        }
        all(root, test.all, &Sampled::default())?;
        budgets::show("test", if test.all { budgets::CI_MINUTES } else { minutes });
        return Ok(());
    }
    let mut command = cargo();
    command.args(["test", "--workspace"]).args(SELECTED).args(&test.arguments).current_dir(root);
    loud(command.envs(modules(root, test.all)?))
}

/// `cargo xtask mutate`: computes the mutation score of every kernel, or of the kernels that the arguments
/// name.
pub fn mutate(root: &Path, arguments: &[String]) -> Result {
    kernels::ptx(root, &Build::all())?;
    let program = binaries::program_beside(root, "mutation", "ferroflash-mutants")?;
    loud(Command::new(program).args(arguments).current_dir(root))
}

/// `cargo xtask fuzz`: solves random problems. The seed comes from the clock, unless the arguments name a
/// seed.
pub fn fuzz(root: &Path, arguments: &[String]) -> Result {
    kernels::ptx(root, &Build::all())?;
    let seed = UNIX_EPOCH.elapsed()?.as_secs().to_string();
    let is_given =
        arguments.iter().any(|a| ["--seed", "--case", "--help"].iter().any(|name| a.starts_with(name)));
    let seed = if is_given { Vec::new() } else { vec!["--seed", &seed] };
    let program = ["run", "--quiet", "--package", "ferroflash-cli", "--", "fuzz", "--device", "sim"];
    loud(cargo().args(program).args(seed).args(arguments).current_dir(root))
}

/// The second half of `cargo xtask bless`: writes what today's planner says to the tables of plans, refusals
/// and launches.
pub fn bless(root: &Path) -> Result {
    let mut command = cargo();
    command.args(["test", "--package", "ferroflash", "--test", "suite"]).args(SELECTED);
    command.args(["--", "tables::", "launches::"]).current_dir(root).env("BLESS", "1");
    loud(command.envs(modules(root, false)?))
}

/// Compiles the sample of the kernels, or all kernels. Returns the environment for the build of a library
/// that contains these kernels.
fn modules(root: &Path, all: bool) -> Result<Environment> {
    if all {
        kernels::ptx(root, &Build::all())?;
        return Ok(None);
    }
    let folder = root.join(SAMPLE);
    let sample = sample::sample();
    kernels::some(root, sample.iter().map(|kernel| kernel.symbol), &folder)?;
    println!("the sample has {} of {} kernels", sample.len(), spec::KERNELS.len());
    Ok(Some((PTX_DIR, folder)))
}

/// Runs the tests of the workspace. With `all`, the library contains all kernels, and every test program
/// runs, except tests that have run on the sample and need not run again. Without `all`, the library contains
/// the sample, and the programs that [`queue::KNOWN`] leaves out do not run.
pub fn all(root: &Path, all: bool, sampled: &Sampled) -> Result {
    let environment = modules(root, all)?;
    let start = Instant::now();
    println!("compiling the tests");
    let mut binaries = binaries::build(root, &environment)?;
    println!("{} test programs, compiled in {:.0} s", binaries.len(), start.elapsed().as_secs_f64());
    let named = queue::KNOWN.iter().map(|(name, _)| *name).chain(SAMPLE_SUFFICES);
    let named = named.filter(|name| *name != DOCUMENTATION);
    if let Some(gone) = named.into_iter().find(|name| binaries.iter().all(|job| job.name != *name)) {
        return Err(format!("no test program is {gone}; change the lists in xtask/src/test").into());
    }
    binaries.retain(|job| !(sampled.has(&job.name) && SAMPLE_SUFFICES.contains(&job.name.as_str())));
    sampled.leave(&mut binaries);
    binaries.iter_mut().for_each(|job| _ = job.command.env(EXAMPLES_BUILT, "1"));
    if all {
        binaries.iter_mut().for_each(|job| _ = job.command.env(THOROUGH, "1"));
    } else {
        binaries.retain(|job| !queue::is_left_out(&job.name));
        let left_out = queue::KNOWN.iter().filter_map(|(_, purpose)| *purpose);
        left_out.for_each(|what| println!("left to `cargo xtask test --all`: {what}"));
    }
    let documentation = || {
        let mut command = cargo();
        command.args(["test", "--quiet", "--workspace", "--doc"]).args(SELECTED).current_dir(root);
        command.envs(environment.clone());
        Job::new(DOCUMENTATION.to_owned(), command)
    };
    let jobs = binaries.into_iter().chain([documentation()]).collect();
    queue::run(jobs)
}

/// Runs the tests of [`LAUNCHING`] on the sample, without the programs that [`queue::KNOWN`] leaves out. `ci`
/// calls this function before [`all`]. Both use one build: the tests on the sample leave the other kernels
/// out.
pub fn on_sample(root: &Path) -> Result<Sampled> {
    let all = modules(root, true)?;
    let sample = modules(root, false)?.map(|(_, folder)| folder).ok_or("the sample has no folder")?;
    let mut jobs = binaries::build(root, &all)?;
    jobs.retain(|job| {
        let is_launching = LAUNCHING.iter().any(|folder| Path::new(&job.name).starts_with(folder));
        is_launching && !queue::is_left_out(&job.name)
    });
    jobs.iter_mut().for_each(|job| _ = job.command.env(TEST_KERNELS, &sample));
    Sampled::run(jobs, &LATER, &root.join(NOTES))
}

/// Builds the C library of the tests with the simulator, and returns its path. Shares the tests' builds.
pub fn library_with_simulator(root: &Path) -> Result<PathBuf> {
    kernels::ptx(root, &Build::all())?;
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--no-run", "--test", "bindings"]).args(SELECTED);
    loud(command.args(["--features", "ferroflash-cabi/sim"]).current_dir(root))?;
    Ok(root.join("target/debug/deps/libferroflash_c.so"))
}
