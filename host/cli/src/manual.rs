//! `ferroflash man`: the manual page of the program, or of one command.
use super::console::Console;
use super::error::Error;
use clap_mangen::Man;
use serde::Serialize;
use std::fmt;

/// Print a manual page, in the form that `man` reads.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash man > ferroflash.1
  ferroflash man verify > ferroflash-verify.1
  ferroflash man verify | man -l -                      read the page at once")]
pub(super) struct Args {
    /// The command. Without it, the page is about the program, and names the pages of all commands.
    command: Option<String>,
}

#[derive(Serialize)]
struct Report {
    command: Option<String>,
    page: String,
}

/// Prints the page. `program` is the command line that the page describes.
pub(super) fn run(args: Args, mut program: clap::Command, console: &Console) -> Result<(), Error> {
    program.build();
    let page = match &args.command {
        None => Man::new(program),
        Some(name) => {
            let unknown = || Error::Invalid(format!("{name}: no such command (--help lists all)"));
            let command = program.find_subcommand(name).ok_or_else(unknown)?;
            Man::new(command.clone()).title(format!("ferroflash-{name}"))
        }
    };
    let mut text = vec![];
    page.render(&mut text).map_err(|error| Error::Invalid(format!("the manual page: {error}")))?;
    let page = String::from_utf8_lossy(&text).into_owned();
    console.report(&Report { command: args.command, page }, Ok(()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page)
    }
}
