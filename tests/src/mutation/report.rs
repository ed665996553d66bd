//! Writes the mutation score to files.
use super::{Change, Score};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// The content of `mutation.json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Evidence {
    /// Number of mutants that ran.
    pub mutants: usize,
    /// Number of mutants that exist in these kernels.
    #[serde(default)]
    pub population: usize,
    /// Number of mutants that the simulator reported, or that did not launch.
    pub caught_by_checkers: usize,
    /// Number of mutants with a wrong result but no report.
    pub caught_by_results: usize,
    /// Number of mutants that no report and no result revealed, each with a reason.
    pub survivors: usize,
    /// Number of survivors that have no effect: in every launch, every thread took the path of the unbroken
    /// kernel.
    pub idle: usize,
    /// Number of redundant survivors: other instructions keep the order that the mutant removes.
    #[serde(default)]
    pub redundant: usize,
    /// One row per kernel.
    pub entries: Vec<Row>,
}

/// A [`Score`], in which survivors are grouped by reason.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    entry: String,
    launches: usize,
    mutants: usize,
    /// The number of mutants that exist, whether they ran or not.
    #[serde(default)]
    population: usize,
    checkers: BTreeMap<String, usize>,
    refused: usize,
    results: usize,
    /// For each operator, the numbers of all mutants, survivors, idle survivors and redundant survivors.
    operators: BTreeMap<String, [usize; 4]>,
    survivors: Vec<Survivors>,
}

/// The survivors of a kernel that have the same reason.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Survivors {
    /// The reason, or `None` if it is unknown.
    reason: Option<String>,
    mutants: usize,
    idle: usize,
    redundant: usize,
    /// For each operator, numbers of lines in the PTX.
    lines: BTreeMap<String, String>,
    /// One of these survivors, with its source lines.
    example: String,
}

/// The name that `value` has in JSON.
fn name(value: impl Serialize) -> String {
    serde_json::to_value(value).unwrap_or_default().as_str().unwrap_or_default().to_owned()
}

impl From<Score> for Row {
    fn from(score: Score) -> Self {
        let mut groups: Vec<Survivors> = vec![];
        for survivor in &score.survivors {
            let same = |group: &&mut Survivors| group.reason.as_deref() == survivor.reason;
            let group = match groups.iter_mut().find(same) {
                Some(group) => group,
                None => {
                    let place = &survivor.source[..survivor.source.len().min(2)];
                    let example = format!("{}, {}", survivor.description, place.join(" from "));
                    let reason = survivor.reason.map(str::to_owned);
                    let (mutants, idle, redundant, lines) = (0, 0, 0, BTreeMap::new());
                    groups.push(Survivors { reason, mutants, idle, redundant, lines, example });
                    let last = groups.len() - 1;
                    &mut groups[last]
                }
            };
            group.mutants += 1;
            group.idle += usize::from(survivor.change == Change::Idle);
            group.redundant += usize::from(survivor.change == Change::Redundant);
            let lines = group.lines.entry(name(survivor.operator)).or_default();
            let gap = if lines.is_empty() { "" } else { " " };
            *lines += &format!("{gap}{}", survivor.line);
        }
        Row {
            entry: score.entry.into(),
            launches: score.launches,
            mutants: score.mutants,
            population: score.population,
            checkers: score.checkers.iter().map(|(kind, count)| ((*kind).into(), *count)).collect(),
            refused: score.refused,
            results: score.results,
            operators: score.operators.iter().map(|(operator, counts)| (name(operator), *counts)).collect(),
            survivors: groups,
        }
    }
}

impl Row {
    fn by_checker(&self) -> usize {
        self.checkers.values().sum::<usize>() + self.refused
    }

    fn survived(&self) -> usize {
        self.survivors.iter().map(|group| group.mutants).sum()
    }

    fn idle(&self) -> usize {
        self.survivors.iter().map(|group| group.idle).sum()
    }

    fn redundant(&self) -> usize {
        self.survivors.iter().map(|group| group.redundant).sum()
    }
}

impl Evidence {
    /// Reads the evidence in `folder`, and drops kernels that the table no longer has.
    ///
    /// # Errors
    /// Returns an error if the file exists but cannot be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        match fs::read(folder.join("mutation.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Evidence::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the older score of this kernel, and computes the totals again. The kernels stay in the order
    /// of the table.
    pub fn put(&mut self, score: Score) {
        let place = |symbol: &str| spec::kernels().position(|kernel| kernel.symbol == symbol);
        self.entries.retain(|row| row.entry != score.entry && place(&row.entry).is_some());
        self.entries.push(score.into());
        self.entries.sort_by_key(|row| place(&row.entry));
        let sum = |of: fn(&Row) -> usize| self.entries.iter().map(of).sum();
        self.mutants = sum(|row| row.mutants);
        self.population = sum(|row| row.population);
        self.caught_by_checkers = sum(Row::by_checker);
        self.caught_by_results = sum(|row| row.results);
        self.survivors = sum(Row::survived);
        self.idle = sum(Row::idle);
        self.redundant = sum(Row::redundant);
    }

    /// Number of survivors without a reason.
    pub fn unexplained(&self) -> usize {
        let groups = self.entries.iter().flat_map(|row| &row.survivors);
        groups.filter(|group| group.reason.is_none()).map(|group| group.mutants).sum()
    }

    /// Whether the required share of the mutants that change a kernel's behaviour is caught.
    pub fn is_sharp(&self) -> bool {
        let Evidence { mutants, survivors, idle, redundant, .. } = *self;
        mutants > 0 && (mutants - survivors) * 100 >= (mutants - idle - redundant) * 97
    }

    /// The evidence as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::from(HEAD);
        let share = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
        let Evidence { mutants, caught_by_checkers, caught_by_results, survivors, idle, redundant, .. } =
            *self;
        let caught = mutants - survivors;
        let reasons = match self.unexplained() {
            0 => "; each has a reason below".to_owned(),
            unexplained => format!(", {unexplained} of them without a known reason"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "**{caught} of {mutants} mutants of {} of the table's {} kernels are caught ({:.1} %)**: \
             {caught_by_checkers} by a checker, {caught_by_results} by a wrong result alone. {survivors} \
             survive{reasons}. {idle} survivors are *idle* and {redundant} are *redundant*: these change \
             nothing. **Of the mutants that change anything, {:.1} % are caught.**\n",
            self.entries.len(),
            spec::kernels().count(),
            share(caught, mutants),
            share(caught, mutants - idle - redundant),
        );
        if self.population > mutants {
            let _ = writeln!(text, "These mutants are a sample of {} mutants.\n", self.population);
        }
        let _ = writeln!(
            text,
            "## By operator\n\n| operator | mutants | caught | idle | redundant | survive otherwise \
             |\n|---|---:|---:|---:|---:|---:|"
        );
        let mut operators: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
        for (operator, counts) in self.entries.iter().flat_map(|row| &row.operators) {
            let sums = operators.entry(operator).or_default();
            *sums = std::array::from_fn(|i| sums[i] + counts[i]);
        }
        for (operator, [all, survived, idle, redundant]) in operators {
            let (caught, others) = (share(all - survived, all), survived - idle - redundant);
            let _ =
                writeln!(text, "| {operator} | {all} | {caught:.1} % | {idle} | {redundant} | {others} |");
        }
        self.reasons(&mut text);
        let _ = writeln!(
            text,
            "\n## By kernel\n\n| kernel | launches | mutants | checker | result | idle | redundant | survive \
             otherwise |\n|---|---:|---:|---:|---:|---:|---:|---:|"
        );
        for row in &self.entries {
            let Row { entry, launches, mutants, results, .. } = row;
            let (by_checker, idle, redundant) = (row.by_checker(), row.idle(), row.redundant());
            let others = row.survived() - idle - redundant;
            let _ = writeln!(
                text,
                "| {entry} | {launches} | {mutants} | {by_checker} | {results} | {idle} | {redundant} | \
                 {others} |"
            );
        }
        text
    }

    /// Writes the reasons why survivors do no harm, with one example per reason.
    fn reasons(&self, text: &mut String) {
        let _ = writeln!(text, "\n## Survivors, by reason\n");
        let mut reasons: BTreeMap<&str, (usize, usize, &str, &str)> = BTreeMap::new();
        for row in &self.entries {
            for group in &row.survivors {
                let reason = group.reason.as_deref().unwrap_or("UNEXPLAINED.");
                let (mutants, idle, ..) = reasons.entry(reason).or_insert((0, 0, &group.example, &row.entry));
                *mutants += group.mutants;
                *idle += group.idle;
            }
        }
        for (reason, (mutants, idle, example, entry)) in reasons {
            let _ = writeln!(
                text,
                "- **{mutants} mutants, {idle} idle.** {reason} For example {example}, in {entry}."
            );
        }
    }
}

const HEAD: &str = "\
# Mutation score of the simulator

A mutant is a kernel's PTX with one change: the operator deletes or alters one instruction, or exchanges it
with the next one. The operators change these parts:

| part | what an operator changes |
|---|---|
| synchronisation | barriers, waits, commits, fences, arrivals and their counts |
| copies | sizes, guards |
| control | branches, predicates, comparisons and their operands |
| data | constants, addresses, operands, lanes of shuffles and votes |

Each mutant runs on these problems:

| kernel | problems |
|---|---|
| every kernel | the entry's edges, rows that meet one huge key, 8192 keys, sweeps of lengths |
| a kernel on a cache | also sweeps of splits, pages, rows and columns, and invalid lengths |
| a kernel that merges splits | the splits of an unbroken kernel |

Mutants that change an order in time run the edges under three schedules. A mutant is caught if a checker
reports it, or if the result is wrong by the tolerance rule.

The run omits a launch if the mutant provably acts like the kernel there. In the unbroken run of such a
launch:

| mutant | condition |
|---|---|
| any | no lane reached the instruction |
| a branch always taken | no lane's guard was false |
| a branch never taken | no lane's guard was true |
| `<` for `<=` | no comparison had equal operands |
| a constant copy size | no copy was short |

A mutant that survives may be *idle*: in every launch, each warp makes the accesses of the unbroken kernel,
with equal values, between equal synchronisations. The run compares a digest of them. (Two accesses between
equal synchronisations have no order; a barrier's number is a name.)

A mutant that survives may be *redundant*: other instructions keep the order that it removes, on every path
through the kernel's text. Examples are a wait or a barrier before the next wait and barrier, with no read
between; a commit that no thread waits for; a barrier of a warp in which no lane has acted alone.
`tests/src/mutation/redundant.rs` proves this from the text, without the simulator.

To repeat the run: `cargo run --release -p ferroflash-tests --bin ferroflash-mutants`, with `--sample N
--seed S` for N mutants of each operator and kernel. `mutation.json` lists each survivor by the line of its
PTX. The reasons are data in `tests/harmless.txt`. The run fails if a survivor has no reason, or
if more than 3 % of the mutants that change anything survive.

";

/// Writes `mutation.json` and `mutation.md` into `folder`.
///
/// # Errors
/// Returns an error if the folder or a file cannot be written.
pub fn write(evidence: &Evidence, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let json = serde_json::to_string(evidence).map_err(io::Error::other)?;
    // The file has one line per kernel.
    let json = json.replace("{\"entry\":", "\n{\"entry\":");
    fs::write(folder.join("mutation.json"), json + "\n")?;
    fs::write(folder.join("mutation.md"), evidence.markdown())
}
