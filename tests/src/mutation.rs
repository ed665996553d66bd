//! Computes the mutation score. A mutation breaks one barrier, wait, predicate, operand, constant, or order
//! of instructions in a kernel's PTX. The tests must notice each mutation.
//!
//! A mutant is *caught* if the simulator reports it, or if its result breaks the tolerance rule, on
//! problems that hit the entry's edge cases. If a mutant survives, `tests/harmless.txt` must contain a
//! reason, or `mutation/harmless.rs`.
use ferroflash::ptx;
use ptx_sim::mutate::{Mutant, Operator, mutants};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

mod cases;
mod flow;
mod forward;
mod harmless;
mod on_cache;
mod redundant;
mod report;
mod sample;
mod spot;
mod subject;
mod trial;

pub use report::{Evidence, write};
pub use sample::Sample;
pub use spot::{Spot, spot};
pub use subject::Subject;
use trial::{Kernel, SCHEDULES, Trial};

/// The outcome of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The simulator reported a finding of this kind.
    Checker(&'static str),
    /// The driver refused the PTX or the launch.
    Refused(String),
    /// The simulator reported nothing, but the result is wrong.
    Result,
    /// No report and no result revealed the mutant.
    Survived,
}

/// The way in which a survivor differs from the unbroken kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The survivor does not differ: in every launch, its effects are those of the unbroken kernel.
    Idle,
    /// The survivor does not differ: on every path through the kernel, other instructions keep the order that
    /// the mutant removes.
    Redundant,
    /// The survivor differs. The survivor differs from the unbroken kernel. A known reason may explain why
    /// the difference does no harm.
    Some,
}

/// A survivor, and the reason why it does no harm.
#[derive(Clone, Debug, Serialize)]
pub struct Survivor {
    /// The way in which the survivor differs from the unbroken kernel.
    pub change: Change,
    /// The mutation operator.
    pub operator: Operator,
    /// Number of the line in the PTX.
    pub line: u32,
    /// The source lines of the instruction, innermost first: `file:line (function)`.
    pub source: Vec<String>,
    /// The instruction before and after the mutation.
    pub description: String,
    /// The reason why the mutant does no harm; with `None`, the run fails.
    pub reason: Option<&'static str>,
}

/// The results of all mutants of a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The symbol of the kernel.
    pub entry: &'static str,
    /// Number of launches that each mutant had to pass.
    pub launches: usize,
    /// Number of mutants that ran.
    pub mutants: usize,
    /// Number of mutants that exist, whether they ran or not.
    pub population: usize,
    /// Number of mutants that the simulator reported, by kind of finding.
    pub checkers: BTreeMap<&'static str, usize>,
    /// Number of mutants that were refused when they were loaded or launched.
    pub refused: usize,
    /// Number of mutants without a report but with a wrong result.
    pub results: usize,
    /// For each operator, the numbers of all mutants, survivors, idle survivors and redundant survivors.
    pub operators: BTreeMap<Operator, [usize; 4]>,
    /// The mutants that no report and no result revealed.
    pub survivors: Vec<Survivor>,
}

/// Runs the mutants of `subject` that `sample` selects. Calls `done` after each mutant.
///
/// # Panics
/// Panics if the unbroken kernel fails.
pub fn score(
    subject: &Subject,
    sample: Sample,
    started: impl FnOnce(usize),
    done: impl Fn() + Sync,
) -> Score {
    let (text, all, population) = planted(subject, sample);
    started(all.len());
    let mut trials = trial::trials(subject, &text, cases::cases(subject));
    let end = |mutant: &Mutant, trials: &[Trial]| {
        let (fate, by, differs) = fate(subject, mutant, &text, trials, true);
        done();
        (fate, differs, by)
    };
    let every = all.len().div_ceil(SCOUTS).max(1);
    let (scouts, others): (Vec<_>, Vec<_>) =
        all.iter().enumerate().partition(|(at, _)| at.is_multiple_of(every));
    let run = |mutants: Vec<(usize, &Mutant)>, trials: &[Trial]| {
        mutants.into_par_iter().map(|(at, mutant)| (at, end(mutant, trials))).collect::<Vec<_>>()
    };
    let mut ends = run(scouts, &trials);
    sharpen(&mut trials, ends.iter().filter_map(|(_, (.., by))| *by));
    ends.extend(run(others, &trials));
    ends.sort_by_key(|(at, _)| *at);
    let ends = ends.into_iter().map(|(at, (fate, differs, _))| (&all[at], (fate, differs)));
    let score = tally(subject, &text, &trials, ends);
    Score { population, ..score }
}

/// The text of a kernel, the mutants that `sample` selects, and the number of all its mutants.
fn planted(subject: &Subject, sample: Sample) -> (String, Vec<Mutant>, usize) {
    let symbol = subject.kernel.symbol;
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let all = mutants(&text, symbol).expect("the simulator reads what the compiler writes");
    let (population, branches) = (all.len(), flow::branches(&all));
    let mut drawn = sample.of(symbol, all);
    flow::name_comparisons(&mut drawn, &branches, &text);
    (text, drawn, population)
}

/// The excuses that no mutant of this process has used. If every mutant of every kernel has run, these
/// excuses are unnecessary.
pub fn unused_excuses() -> Vec<String> {
    harmless::unused()
}

/// Size of a worker's stack in bytes. The stack is large because a worker that waits for a part of one trial
/// starts another trial.
pub const STACK: usize = 64 << 20;

/// Number of mutants that run first, to find out which trials catch the most mutants.
const SCOUTS: usize = 48;

/// Sorts trials by the number of these first mutants that each of them has caught.
fn sharpen(trials: &mut [Trial], caught: impl Iterator<Item = usize>) {
    caught.for_each(|by| trials[by].catches += 1);
    trials.sort_by_key(|trial| std::cmp::Reverse(trial.catches));
}

/// Runs `mutant` in the trials in which it may differ from the unbroken kernel, until a trial reveals it.
/// Also returns the trial that revealed it, and whether the mutant differs from the unbroken kernel in at
/// least one trial. A survivor does not differ if, between the same synchronisations, each warp makes the
/// same accesses with the same values. Without `compares`, this function does not find out whether a survivor
/// differs, and takes less time.
fn fate(
    subject: &Subject,
    mutant: &Mutant,
    text: &str,
    trials: &[Trial],
    compares: bool,
) -> (Fate, Option<usize>, bool) {
    let kernel = match Kernel::load(subject, &mutant.apply(text)) {
        Ok(kernel) => kernel,
        Err(error) => return (Fate::Refused(error.to_string()), None, true),
    };
    let schedules = if mutant.orders() { &SCHEDULES[..] } else { &SCHEDULES[..1] };
    let mut differs = false;
    for (round, schedule) in schedules.iter().enumerate() {
        let due = |trial: &Trial| mutant.differs(&trial.coverage) && !(trial.is_of_a_sweep() && round > 0);
        for (index, trial) in trials.iter().enumerate().filter(|(_, trial)| due(trial)) {
            // The unbroken kernel's effects are those of the first schedule.
            let compares = compares && round == 0 && !differs;
            let (noticed, effects) = kernel.run(trial, *schedule, compares);
            if let Some(found) = noticed {
                return (found, Some(index), true);
            }
            differs |= compares && effects != Some(trial.coverage.effects());
        }
    }
    (Fate::Survived, None, differs)
}

fn tally<'a>(
    subject: &Subject,
    text: &str,
    trials: &[Trial],
    ends: impl Iterator<Item = (&'a Mutant, (Fate, bool))>,
) -> Score {
    let (checkers, operators, survivors) = (BTreeMap::new(), BTreeMap::new(), vec![]);
    let mut score = Score {
        entry: subject.kernel.symbol,
        launches: trials.len(),
        mutants: 0,
        population: 0,
        checkers,
        refused: 0,
        results: 0,
        operators,
        survivors,
    };
    for (mutant, (fate, differs)) in ends {
        score.mutants += 1;
        let [all, survived, idle, redundant] = score.operators.entry(mutant.operator).or_default();
        *all += 1;
        match fate {
            Fate::Checker(kind) => *score.checkers.entry(kind).or_default() += 1,
            Fate::Refused(_) => score.refused += 1,
            Fate::Result => score.results += 1,
            Fate::Survived => {
                let order = redundant::reason(mutant, text).filter(|_| differs);
                let change = match (differs, order) {
                    (false, _) => Change::Idle,
                    (true, Some(_)) => Change::Redundant,
                    (true, None) => Change::Some,
                };
                *survived += 1;
                *idle += usize::from(change == Change::Idle);
                *redundant += usize::from(change == Change::Redundant);
                score.survivors.push(Survivor {
                    change,
                    reason: order.or_else(|| harmless::reason(subject, mutant, text, differs)),
                    operator: mutant.operator,
                    line: mutant.line,
                    source: mutant.source.iter().map(ToString::to_string).collect(),
                    description: mutant.description.clone(),
                });
            }
        }
    }
    score
}

impl Score {
    /// Number of mutants that were caught.
    pub fn caught(&self) -> usize {
        self.mutants - self.survivors.len()
    }

    /// Number of survivors that change nothing.
    pub fn unchanged(&self) -> usize {
        self.survivors.iter().filter(|survivor| survivor.change != Change::Some).count()
    }

    /// The survivors for which no reason is known.
    pub fn unexplained(&self) -> impl Iterator<Item = &Survivor> {
        self.survivors.iter().filter(|survivor| survivor.reason.is_none())
    }
}
