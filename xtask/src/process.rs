//! Runs other programs and reports their failures.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fmt};

use indicatif::{ProgressBar, ProgressStyle};

/// The result of a task. An error ends the task, and the task prints the error's text.
pub type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// The error of a program that has failed.
#[derive(Debug)]
struct Failed {
    command: String,
    output: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed", self.command)?;
        if self.output.is_empty() { Ok(()) } else { write!(f, ":\n{}", self.output) }
    }
}

impl std::error::Error for Failed {}

/// Runs a program, and shows its output only if it fails.
pub fn quiet(command: &mut Command) -> Result {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", describe(command)))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let output = String::from_utf8_lossy(&text).trim().to_owned();
    Err(Failed { command: describe(command), output }.into())
}

/// Runs a program that prints to the terminal.
pub fn loud(command: &mut Command) -> Result {
    let status = command.status().map_err(|e| format!("{}: {e}", describe(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failed { command: describe(command), output: String::new() }.into())
    }
}

/// Runs a program, and returns its standard output.
pub fn stdout(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", describe(command)))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failed { command: describe(command), output }.into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A command that runs the cargo that started this task.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Finds a program on PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.is_file())
}

/// A line on the terminal which shows that a step is running. Without a terminal, the step's name is printed.
pub fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    if bar.is_hidden() {
        eprintln!("{message}");
    }
    bar.set_style(
        ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A progress bar on the terminal, for work of known length.
pub fn bar(message: &str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64).with_message(message.to_owned());
    let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} ({eta})");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn describe(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether this process runs in CI.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}
