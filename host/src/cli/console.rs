//! What a command prints, and where.
use super::error::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::time::Duration;

/// The terminal of one command: reports on standard output, progress and errors on standard error.
pub(super) struct Console {
    json: bool,
}

impl Console {
    /// `json`: reports are JSON documents.
    pub(super) fn new(json: bool) -> Self {
        Console { json }
    }

    /// Prints a command's report.
    pub(super) fn report<R: Serialize + Display>(&self, report: &R) {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report).expect("reports have string keys"));
        } else {
            print!("{report}");
        }
    }

    /// Prints an error on one line; with `--json` as a document on standard output, too.
    pub(super) fn error(&self, error: &Error) {
        if self.json {
            println!("{}", serde_json::json!({ "error": error.to_string(), "exit_code": error.code() }));
        }
        eprintln!("error: {error}");
    }

    /// Says something that is not part of the report.
    pub(super) fn note(&self, text: impl Display) {
        eprintln!("{text}");
    }

    /// A bar for `steps` steps of `what`, on a terminal only.
    pub(super) fn progress(&self, what: &'static str, steps: usize) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr_with_hz(10));
        let style =
            ProgressStyle::with_template("{prefix} [{bar:32}] {pos}/{len}  {elapsed} of about {duration}  {msg}");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        bar.set_prefix(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}
