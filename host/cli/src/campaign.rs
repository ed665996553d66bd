//! A campaign is a command that checks many kernels: verify, soak, sanitize, cross-check. Each kernel leaves
//! a row, the report prints the rows, and the first failure is the command's error.
use super::console::Console;
use super::ended;
use super::error::Error;
use rayon::prelude::*;
use std::borrow::Cow;
use std::fmt;

/// The facts that a campaign needs from the row of one kernel, or of one tool that checks kernels.
pub(super) struct Outcome<'r> {
    pub name: Cow<'r, str>,
    /// The reason why the kernel cannot run here.
    pub skipped: Option<&'r str>,
    /// Whether a part of the work has run.
    pub is_begun: bool,
    /// The number of cases that had not run when the command was ended.
    pub left: usize,
    pub failures: Vec<String>,
}

/// Checks all items on all cores, and shows the progress of `what`. Each item has a name.
pub(super) fn each<T: Sync, R: Send>(
    console: &Console,
    what: &'static str,
    all: &[T],
    name: impl Fn(&T) -> String + Sync,
    check: impl Fn(&T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let bar = console.progress(what, all.len());
    let rows = all.par_iter().map(|item| {
        bar.set_message(name(item));
        let row = check(item);
        bar.inc(1);
        row
    });
    let rows = rows.collect();
    bar.finish_and_clear();
    rows
}

/// Returns the result of a command, in this order: the number of failures and the first one, the error `ran`
/// that stopped the command, that a signal ended it, that no kernel ran. `found` names the failures, and
/// `whole` completes "3 of 7 ..".
pub(super) fn conclude<'r>(
    rows: impl Iterator<Item = Outcome<'r>>,
    [found, whole]: [&str; 2],
    ran: Result<(), Error>,
    device: impl fmt::Display,
) -> Result<(), Error> {
    let rows: Vec<_> = rows.collect();
    let all = rows.iter().flat_map(|row| row.failures.iter().map(move |why| format!("{}: {why}", row.name)));
    let failures: Vec<_> = all.collect();
    if let Some(first) = failures.first() {
        return Err(Error::Wrong(format!("{} {found}, the first: {first}", failures.len())));
    }
    ran?;
    let able = || rows.iter().filter(|row| row.skipped.is_none());
    if let Some(early) = ended::early(able().filter(|row| row.left == 0).count(), able().count(), whole) {
        return Err(early);
    }
    let has_run = rows.iter().map(|row| (&*row.name, row.skipped.is_none() && row.is_begun));
    Error::nothing_ran(has_run, device).map_or(Ok(()), Err)
}

/// Prints the rows under `heading`. A row of a kernel that ran has its cells, and a line for each failure,
/// which begins with `mark`.
pub(super) fn table<'r>(
    f: &mut fmt::Formatter<'_>,
    heading: [&str; 2],
    mark: &str,
    rows: impl Iterator<Item = (Outcome<'r>, String)>,
) -> fmt::Result {
    let rows: Vec<_> = rows.collect();
    let width = rows.iter().map(|(row, _)| row.name.len()).max().unwrap_or(0);
    writeln!(f, "{:width$}  {}", heading[0], heading[1])?;
    for (Outcome { name, skipped, is_begun, failures, .. }, cells) in &rows {
        match skipped {
            Some(reason) => writeln!(f, "{name:width$}  skipped: {reason}")?,
            None if !is_begun => writeln!(f, "{name:width$}  not run")?,
            None => writeln!(f, "{name:width$}  {cells}")?,
        }
        failures.iter().try_for_each(|failure| writeln!(f, "  {mark} {failure}"))?;
    }
    Ok(())
}

/// Returns the text about cases that had not run when the command was ended.
pub(super) fn left(cases: usize) -> String {
    if cases > 0 { format!("  {cases} cases left") } else { String::new() }
}

/// Returns the verdict of a command. `words` are the verdicts without and with failures.
pub(super) fn verdict<'r, 'w>(
    rows: impl Iterator<Item = Outcome<'r>>,
    passed: bool,
    words: [&'w str; 2],
) -> &'w str {
    let [is_wrong, has_run] = rows.fold([false; 2], |[wrong, ran], row| {
        [wrong || !row.failures.is_empty(), ran || row.skipped.is_none()]
    });
    verdict_of(passed, is_wrong, !has_run, words)
}

/// Like [`verdict`]. A run without failures that did not pass has ended early, or had no kernel to run
/// (`nothing_ran`).
pub(super) fn verdict_of(passed: bool, is_wrong: bool, nothing_ran: bool, words: [&str; 2]) -> &str {
    let [right, wrong] = words;
    match (passed, is_wrong, nothing_ran) {
        (true, ..) => right,
        (false, true, _) => wrong,
        (false, false, true) => "nothing ran",
        (false, false, false) => "ended early, nothing wrong so far",
    }
}

/// Returns the verdict's text about skipped kernels, if there are any.
pub(super) fn skipped<'r>(rows: impl Iterator<Item = Outcome<'r>>) -> String {
    match rows.filter(|row| row.skipped.is_some()).count() {
        0 => String::new(),
        1 => "; 1 kernel skipped: its line says why".into(),
        count => format!("; {count} kernels skipped: their lines say why"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_early_is_not_wrong() {
        for (passed, is_wrong, nothing_ran, expected) in [
            (true, false, false, "right"),
            (false, true, false, "WRONG"),
            (false, true, true, "WRONG"),
            (false, false, true, "nothing ran"),
            (false, false, false, "ended early, nothing wrong so far"),
        ] {
            assert_eq!(verdict_of(passed, is_wrong, nothing_ran, ["right", "WRONG"]), expected);
        }
    }
}
