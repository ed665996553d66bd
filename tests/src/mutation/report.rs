//! The mutation score as files.
use super::{Score, Survivor};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// What `mutation.json` holds.
#[derive(Serialize)]
pub struct Evidence {
    /// All mutants.
    pub mutants: usize,
    /// Those that a checker reported, or that did not launch.
    pub caught_by_checkers: usize,
    /// Those whose result was wrong, without a report.
    pub caught_by_results: usize,
    /// Those that nobody noticed, each with a reason.
    pub survivors: usize,
    /// Entry by entry.
    pub entries: Vec<Score>,
}

impl Evidence {
    /// Adds the entries up.
    pub fn new(entries: Vec<Score>) -> Self {
        let sum = |of: fn(&Score) -> usize| entries.iter().map(of).sum();
        Evidence {
            mutants: sum(|score| score.mutants),
            caught_by_checkers: sum(|score| score.checkers.values().sum::<usize>() + score.refused),
            caught_by_results: sum(|score| score.results),
            survivors: sum(|score| score.survivors.len()),
            entries,
        }
    }

    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::from(HEAD);
        let share = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
        let caught = self.mutants - self.survivors;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "**{caught} of {} mutants of {} of the table's {} entries are caught ({:.1} %)**: {} by a checker, {} by a wrong result alone. {} survive; each has a \
             reason below.\n",
            self.mutants,
            self.entries.len(),
            ferroflash::ENTRIES.len(),
            share(caught, self.mutants),
            self.caught_by_checkers,
            self.caught_by_results,
            self.survivors
        );
        let _ = writeln!(text, "## By operator\n\n| operator | mutants | caught |\n|---|---:|---:|");
        let mut operators: BTreeMap<_, [usize; 2]> = BTreeMap::new();
        for (operator, counts) in self.entries.iter().flat_map(|score| &score.operators) {
            let sums = operators.entry(*operator).or_default();
            *sums = [sums[0] + counts[0], sums[1] + counts[1]];
        }
        for (operator, [all, survived]) in operators {
            let name = serde_json::to_value(operator).unwrap_or_default();
            let _ = writeln!(
                text,
                "| {} | {all} | {:.1} % |",
                name.as_str().unwrap_or_default(),
                share(all - survived, all)
            );
        }
        let _ = writeln!(text, "\n## Survivors, by reason\n");
        let mut reasons: BTreeMap<&str, Vec<(&str, &Survivor)>> = BTreeMap::new();
        for score in &self.entries {
            for survivor in &score.survivors {
                let reason = survivor.reason.unwrap_or("UNEXPLAINED");
                reasons.entry(reason).or_default().push((score.entry, survivor));
            }
        }
        for (reason, survivors) in reasons {
            let [(entry, example), ..] = survivors[..] else { continue };
            let place = example.source.last().map_or("", String::as_str);
            let _ = writeln!(
                text,
                "- **{} mutants.** {reason} For example {}, {entry}, {place}.",
                survivors.len(),
                example.description
            );
        }
        let _ = writeln!(
            text,
            "\n## By entry\n\n| entry | mutants | checker | result | survivors |\n|---|---:|---:|---:|---:|"
        );
        for score in &self.entries {
            let by_checker = score.checkers.values().sum::<usize>() + score.refused;
            let _ = writeln!(
                text,
                "| {} | {} | {by_checker} | {} | {} |",
                score.entry,
                score.mutants,
                score.results,
                score.survivors.len()
            );
        }
        text
    }
}

const HEAD: &str = "\
# Mutation score of the simulator

Every barrier, wait, commit, fence, arrival, copy size, guard, branch and ordered comparison in an entry's PTX is deleted or altered, one at a time, and the
broken kernel runs on the problems that hit the entry's edges, under up to three schedules. A mutant is caught where a checker reports it or the result is wrong by the
tolerance rule. bf16 entries are the same code as their f16 twins with other conversions; without `--entry` three of them are broken beside every f16 entry.

To repeat it: `cargo run --release -p ferroflash-tests --bin ferroflash-mutants`. `mutation.json` lists each survivor with its line. The reasons are data in
`tests/src/mutation/harmless.rs`; a survivor without one fails the run.

";

/// Writes `mutation.json` and `mutation.md` into `folder`.
///
/// # Errors
/// Where the folder or a file cannot be written.
pub fn write(evidence: &Evidence, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let json = serde_json::to_string_pretty(evidence).map_err(io::Error::other)?;
    fs::write(folder.join("mutation.json"), json + "\n")?;
    fs::write(folder.join("mutation.md"), evidence.markdown())
}
