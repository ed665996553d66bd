//! The output of commands.
use super::error::Error;
use super::progress::Progress;
use serde::Serialize;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The terminal of one command: reports on standard output, progress and errors on standard error.
pub(super) struct Console {
    json: bool,
    /// Whether a report has been printed. The program prints only one document to standard output.
    reported: Cell<bool>,
    /// The kernels that `--ptx-dir` has replaced.
    replaced: &'static [&'static str],
    /// The folder of the replacing kernels.
    ptx_dir: Option<PathBuf>,
}

/// A report and the command's error, in one object.
#[derive(Serialize)]
struct Document<'r, R> {
    #[serde(flatten)]
    report: Option<&'r R>,
    #[serde(flatten)]
    failure: Option<Failure>,
    /// Kernels that `--ptx-dir` has replaced.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    replaced_kernels: &'static [&'static str],
}

#[derive(Serialize)]
struct Failure {
    error: String,
    exit_code: u8,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Failure { error: error.to_string(), exit_code: error.code() }
    }
}

/// Most names of replaced kernels in a note. The report has all of them.
const MOST_NAMES: usize = 5;

impl Console {
    /// Creates a console. With `json`, the console prints reports as JSON documents.
    pub(super) fn new(json: bool) -> Self {
        Console { json, reported: Cell::new(false), replaced: &[], ptx_dir: None }
    }

    /// Prints the names of the kernels that come from a folder, and stores them for the report.
    pub(super) fn replaced(&mut self, folder: &Path, kernels: &'static [&'static str]) {
        self.ptx_dir = Some(folder.to_owned());
        let (first, more) = kernels.split_at(kernels.len().min(MOST_NAMES));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let (folder, names, count) = (folder.display(), first.join(", "), kernels.len());
        self.note(format_args!("--ptx-dir replaces kernels ({count}) by files of {folder}: {names}{more}"));
        self.replaced = kernels;
    }

    /// Returns the kernels that `--ptx-dir` has replaced, and the option for child processes.
    pub(super) fn replacement(&self) -> (&'static [&'static str], impl Iterator<Item = &OsStr>) {
        let option = self.ptx_dir.iter().flat_map(|folder| [OsStr::new("--ptx-dir"), folder.as_os_str()]);
        (self.replaced, option)
    }

    /// Prints a command's report and returns `result`, which ends the command. With JSON, the document
    /// contains the error beside the results.
    ///
    /// # Errors
    /// Returns the error of `result`. If there is none, returns an error if standard output cannot be
    /// written.
    pub(super) fn report<R>(&self, report: &R, result: Result<(), Error>) -> Result<(), Error>
    where
        R: Serialize + Display,
    {
        let failure = result.as_ref().err().map(Failure::from);
        let text = if self.json { self.document(Some(report), failure) } else { report.to_string() };
        self.reported.set(true);
        result.and(write(&text))
    }

    /// Prints an error on one line. With `--json`, also prints it as a document on standard output, unless a
    /// report was already printed.
    pub(super) fn error(&self, error: &Error) {
        if self.json && !self.reported.get() {
            // The result is ignored, because the exit code also reports the error.
            let _ = write(&self.document::<()>(None, Some(error.into())));
        }
        self.note(format_args!("error: {error}"));
    }

    /// Returns a report as JSON.
    pub(super) fn json<R: Serialize>(&self, report: &R, result: &Result<(), Error>) -> String {
        self.document(Some(report), result.as_ref().err().map(Failure::from))
    }

    fn document<R: Serialize>(&self, report: Option<&R>, failure: Option<Failure>) -> String {
        let document = Document { report, failure, replaced_kernels: self.replaced };
        format!("{}\n", serde_json::to_string_pretty(&document).expect("reports have string keys"))
    }

    /// Prints a message that is not part of the report.
    pub(super) fn note(&self, text: impl Display) {
        // The result is ignored: if this fails, no output is left to report it.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Shows that a step of unknown length runs, and the elapsed time.
    pub(super) fn waiting(&self, what: impl Display) -> Progress {
        Progress::waiting(what.to_string())
    }

    /// Shows how many of the `steps` steps of `what` a command has done.
    pub(super) fn progress(&self, what: &'static str, steps: usize) -> Progress {
        Progress::of_steps(what, steps)
    }
}

/// Writes to standard output. A reader may close the pipe when it has read enough (`ferroflash kernels | head
/// -1`); this is not a failure.
fn write(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Invalid(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}
