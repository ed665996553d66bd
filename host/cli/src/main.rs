//! The command line, with one file per command.
//!
//! A command parses its arguments, does its work and returns a report. The report prints itself as text, or
//! as JSON with `--json`. All errors have one type, which determines the exit code.
mod bench;
mod campaign;
mod completions;
mod console;
mod cross_check;
mod demo;
mod device;
mod ended;
mod error;
mod files;
mod fuzz;
mod info;
mod kernels;
mod manual;
mod nvml;
mod options;
mod progress;
mod report;
mod results;
mod run;
mod sanitize;
mod soak;
mod sweep;
mod template;
mod verify;
mod words;
mod workers;

use clap::{CommandFactory, Parser, Subcommand};
use console::Console;
use error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Fused attention for NVIDIA GPUs, every kernel written in Rust.
#[derive(Parser)]
#[command(name = "ferroflash", bin_name = "ferroflash", version, after_help = AFTER_HELP)]
struct Cli {
    /// Print one JSON document instead of text. A failure adds the fields `error` and `exit_code`.
    #[arg(long, global = true)]
    json: bool,
    /// For kernel development: load a kernel from the file DIR/<kernel>.ptx, if this file exists.
    #[arg(long, global = true, value_name = "DIR")]
    ptx_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Start here:
  ferroflash demo                 compute attention on a small input and check it against the reference
  ferroflash info                 show the GPU, the driver, and the kernels that would run
  ferroflash run --help           compute attention on a safetensors file

More commands:
  sweep        time every kernel that solves a shape, and keep the fastest for the planner
  cross-check  compare the results of every kernel on the GPU and in the simulator
  soak         launch every kernel thousands of times
  fuzz         compare random problems with the reference
  man          print a manual page

Exit codes:
  0  success
  1  a result is wrong: it is outside the tolerance, it differs between two runs, it is slower than
     --against allows, or the sanitizer reports a finding
  2  the command line, a file or an input is not valid, or a feature is not supported
  3  the machine has no GPU or no usable driver
  4  the GPU or its driver failed
  5  a signal ended the command; the report has the results so far
  128 + N  signal N came again, more than a second later; there is no report";

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Demo(demo::Args),
    Info(info::Args),
    Kernels(kernels::Args),
    Bench(bench::Args),
    Verify(verify::Args),
    Sanitize(sanitize::Args),
    Report(report::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Sweep(sweep::Args),
    #[command(hide = true, name = "cross-check", alias = "agree")]
    CrossCheck(cross_check::Args),
    #[command(hide = true)]
    Soak(soak::Args),
    #[command(hide = true)]
    Fuzz(fuzz::Args),
    #[command(hide = true, name = "man")]
    Manual(manual::Args),
}

/// Returns the command line with all commands, also those that `--help` lists under "More commands".
fn program() -> clap::Command {
    Cli::command().mut_subcommands(|command| command.hide(false))
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let mut console = Console::new(cli.json);
    match cli.ptx_dir.as_deref().map_or(Ok(()), |folder| replace_kernels(folder, &mut console)) {
        Ok(()) => conclude(execute(cli.command, &console), &console),
        Err(error) => conclude(Err(error), &console),
    }
}

/// Loads kernels from the files of a folder, and prints their names.
fn replace_kernels(folder: &Path, console: &mut Console) -> Result<(), Error> {
    // SAFETY: the user who gives the option promises valid files; `--help` says that the files replace
    // kernels.
    let replaced = unsafe { ferroflash::ptx::replace_from(folder) };
    let replaced = replaced.map_err(|e| Error::Invalid(format!("--ptx-dir: {e}")))?;
    console.replaced(folder, replaced);
    Ok(())
}

fn execute(command: Command, console: &Console) -> Result<(), Error> {
    match command {
        Command::Run(args) => run::run(args, console),
        Command::Verify(args) => verify::run(args, console),
        Command::Sanitize(args) => sanitize::run(args, console),
        Command::CrossCheck(args) => cross_check::run(args, console),
        Command::Soak(args) => soak::run(args, console),
        Command::Fuzz(args) => fuzz::run(args, console),
        Command::Kernels(args) => kernels::run(args, console),
        Command::Info(args) => info::run(args, console),
        Command::Sweep(args) => sweep::run(args, console),
        Command::Bench(args) => bench::run(args, console),
        Command::Report(args) => report::run(args, console),
        Command::Demo(args) => demo::run(args, console),
        Command::Completions(args) => completions::run(args, program(), console),
        Command::Manual(args) => manual::run(args, program(), console),
    }
}

/// Prints the error of a command, and returns the exit code.
fn conclude(result: Result<(), Error>, console: &Console) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console.error(&error);
            error.exit_code()
        }
    }
}

/// Prints help unchanged, and an error of usage on one line.
fn usage(error: &clap::Error) -> ExitCode {
    let help = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if help || !error.use_stderr() {
        // The result is ignored: if this fails, no output is left for a report.
        let _ = error.print();
        return if help { Error::Invalid(String::new()).exit_code() } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")).collect();
    let message = lines.iter().filter(|line| !line.is_empty()).copied().collect::<Vec<_>>().join(" ");
    let message =
        message.trim_start_matches("error: ").trim_end_matches(" For more information, try '--help'.");
    let error = Error::Invalid(format!("{message} (examples: --help)"));
    Console::new(std::env::args().any(|arg| arg == "--json")).error(&error);
    error.exit_code()
}
