//! The progress of a long command: a bar on a terminal, otherwise a line from time to time.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::ops::Deref;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The interval of lines if standard error is not a terminal.
const LINES: Duration = Duration::from_secs(10);

/// The progress of one command on standard error. When the value is dropped, no further line is printed.
pub(super) struct Progress {
    bar: ProgressBar,
    /// The channel on which the printing thread waits, or `None` on a terminal.
    _end: Option<mpsc::Sender<()>>,
}

impl Progress {
    /// Shows the progress of `steps` steps of `what`.
    pub(super) fn of_steps(what: &'static str, steps: usize) -> Self {
        let template = "{prefix} [{bar:32}] {pos}/{len}  {elapsed} of about {duration}  {msg}";
        Self::new(what, Some(steps as u64), template)
    }

    /// Shows the progress of work of unknown length.
    pub(super) fn waiting(what: String) -> Self {
        let progress = Self::new("", None, "{spinner} {msg}, {elapsed}");
        progress.bar.set_message(what);
        progress
    }

    fn new(what: &'static str, steps: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(steps, ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template(template).expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(what);
        if io::stderr().is_terminal() {
            bar.enable_steady_tick(Duration::from_millis(200));
            return Progress { bar, _end: None };
        }
        let (end, ended) = mpsc::channel();
        let shown = bar.clone();
        thread::spawn(move || {
            while ended.recv_timeout(LINES) == Err(RecvTimeoutError::Timeout) && !shown.is_finished() {
                // The result is ignored: if this fails, no output is left for a report.
                let _ = writeln!(io::stderr(), "{}", line(&shown, shown.elapsed()));
            }
        });
        Progress { bar, _end: Some(end) }
    }
}

impl Deref for Progress {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

/// Returns the bar as a line, for example `verify: 120 of 360, 21 s of about 63 s: fwd_f16_d64_full_128x64`.
fn line(bar: &ProgressBar, elapsed: Duration) -> String {
    let (seconds, message) = (elapsed.as_secs(), bar.message());
    let Some(steps) = bar.length() else { return format!("{message}, {seconds} s") };
    let done = bar.position();
    let whole = match done {
        0 => String::new(),
        _ => format!(" of about {:.0} s", elapsed.as_secs_f64() * steps as f64 / done as f64),
    };
    let message = if message.is_empty() { message } else { format!(": {message}") };
    format!("{}: {done} of {steps}, {seconds} s{whole}{message}", bar.prefix())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let bar = ProgressBar::hidden();
        bar.set_message("computing");
        let line = |seconds| line(&bar, Duration::from_secs(seconds));
        assert_eq!(line(0), "computing, 0 s");
        bar.set_length(40);
        bar.set_prefix("verify");
        assert_eq!(line(7), "verify: 0 of 40, 7 s: computing");
        bar.inc(10);
        bar.set_message("");
        assert_eq!(line(21), "verify: 10 of 40, 21 s of about 84 s");
    }
}
