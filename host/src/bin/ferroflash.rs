//! The command line of FerroFlash. Its commands live in [`ferroflash::cli`], one file each.
use std::process::ExitCode;

fn main() -> ExitCode {
    ferroflash::cli::main()
}
