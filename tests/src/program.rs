//! The program `ferroflash`, for tests of the command line.
use std::process::ExitCode;

fn main() -> ExitCode {
    ferroflash::cli::main()
}
