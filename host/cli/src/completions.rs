//! `ferroflash completions`: a completion script for a shell.
use super::console::Console;
use super::error::Error;
use clap_complete::Shell;
use serde::Serialize;
use std::fmt;

/// Print a script that completes this program's commands and options in a shell.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash completions bash > ~/.local/share/bash-completion/completions/ferroflash
  ferroflash completions zsh > ~/.zfunc/_ferroflash     where ~/.zfunc is in fpath
  ferroflash completions fish > ~/.config/fish/completions/ferroflash.fish")]
pub(super) struct Args {
    /// The shell that runs the script.
    shell: Shell,
}

#[derive(Serialize)]
struct Report {
    shell: String,
    script: String,
}

/// Prints the script. `program` is the command line that the script completes.
pub(super) fn run(args: Args, mut program: clap::Command, console: &Console) -> Result<(), Error> {
    let mut script = vec![];
    let name = program.get_name().to_owned();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    console.report(&Report { shell: args.shell.to_string(), script }, Ok(()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.script)
    }
}
