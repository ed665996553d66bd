//! The mutation score. A mutation breaks one barrier, wait, predicate, operand, constant or instruction order
//! in a kernel's PTX. A test must notice it.
//!
//! A mutant is *caught* if a checker of the simulator reports it, or if the result breaks the tolerance rule,
//! on problems that hit the entry's edges. A mutant that survives must have its reason in
//! `mutation/harmless.rs`.
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

/// The fate of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A checker reported a hazard of this kind.
    Checker(&'static str),
    /// The driver refused the PTX or the launch.
    Refused(String),
    /// No report, but the result is wrong.
    Result,
    /// Nothing revealed the mutant.
    Survived,
}

/// The difference of a survivor from the unbroken kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Not at all: in every launch, its effects equal the unbroken kernel's.
    Idle,
    /// Not at all: on every path through the kernel, other instructions keep the order that the mutant
    /// removes.
    Redundant,
    /// The survivor differs. There may be a known reason why this does no harm.
    Some,
}

/// A survivor, and the reason why it does no harm.
#[derive(Clone, Debug, Serialize)]
pub struct Survivor {
    /// The survivor's difference from the unbroken kernel.
    pub change: Change,
    /// The mutation operator.
    pub operator: Operator,
    /// Line of the PTX.
    pub line: u32,
    /// The source lines of the instruction, innermost first: `file:line (function)`.
    pub source: Vec<String>,
    /// The instruction before and after.
    pub description: String,
    /// The reason why the mutant does no harm; `None` fails the run.
    pub reason: Option<&'static str>,
}

/// The results of all mutants of a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The kernel's symbol.
    pub entry: &'static str,
    /// Launches that each mutant had to pass.
    pub launches: usize,
    /// Mutants that ran.
    pub mutants: usize,
    /// Mutants that exist, whether they ran or not.
    pub population: usize,
    /// Mutants that a checker reported, by kind.
    pub checkers: BTreeMap<&'static str, usize>,
    /// Mutants that were refused when they were loaded or launched.
    pub refused: usize,
    /// Mutants without a report, but with a wrong result.
    pub results: usize,
    /// By operator: all mutants, survivors, idle survivors, redundant survivors.
    pub operators: BTreeMap<Operator, [usize; 4]>,
    /// Mutants that nothing revealed.
    pub survivors: Vec<Survivor>,
}

/// Breaks `subject` in every way that `sample` takes. Calls `done` after each mutant.
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
        let (fate, by) = fate(subject, mutant, &text, trials);
        let differs = fate != Fate::Survived || differs(subject, mutant, &text, trials);
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

/// The text of a kernel, the mutants that `sample` takes, and the number of all its mutants.
fn planted(subject: &Subject, sample: Sample) -> (String, Vec<Mutant>, usize) {
    let symbol = subject.kernel.symbol;
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let all = mutants(&text, symbol).expect("the simulator reads what the compiler writes");
    let (population, branches) = (all.len(), flow::branches(&all));
    let mut drawn = sample.of(symbol, all);
    flow::name_comparisons(&mut drawn, &branches, &text);
    (text, drawn, population)
}

/// Excuses that no mutant of this process has used. After a run with every mutant of every kernel, they
/// excuse nothing.
pub fn unused_excuses() -> Vec<String> {
    harmless::unused()
}

/// Bytes of a worker's stack. A worker that waits for a part of one trial starts another trial.
pub const STACK: usize = 64 << 20;

/// Mutants that run first, to find out which trials catch the most.
const SCOUTS: usize = 48;

/// Sorts trials by the number of scouts that each has caught.
fn sharpen(trials: &mut [Trial], caught: impl Iterator<Item = usize>) {
    caught.for_each(|by| trials[by].catches += 1);
    trials.sort_by_key(|trial| std::cmp::Reverse(trial.catches));
}

/// Runs `mutant` in every trial in which it may differ from the unbroken kernel, until one reveals it.
/// Returns that trial, too.
fn fate(subject: &Subject, mutant: &Mutant, text: &str, trials: &[Trial]) -> (Fate, Option<usize>) {
    let kernel = match Kernel::load(subject, &mutant.apply(text)) {
        Ok(kernel) => kernel,
        Err(error) => return (Fate::Refused(error.to_string()), None),
    };
    let schedules = if mutant.orders() { &SCHEDULES[..] } else { &SCHEDULES[..1] };
    for (round, schedule) in schedules.iter().enumerate() {
        let due = |trial: &Trial| mutant.differs(&trial.coverage) && !(trial.is_of_a_sweep() && round > 0);
        let noticed = trials
            .iter()
            .enumerate()
            .filter(|(_, trial)| due(trial))
            .find_map(|(index, trial)| kernel.run(trial, *schedule).map(|fate| (fate, Some(index))));
        if let Some(found) = noticed {
            return found;
        }
    }
    (Fate::Survived, None)
}

/// Whether a survivor differed from the unbroken kernel in any trial. A mutant is equal if each warp made
/// equal accesses with equal values between equal synchronisations.
fn differs(subject: &Subject, mutant: &Mutant, text: &str, trials: &[Trial]) -> bool {
    let Ok(kernel) = Kernel::load(subject, &mutant.apply(text)) else { return true };
    let mut due = trials.iter().filter(|trial| mutant.differs(&trial.coverage));
    due.any(|trial| kernel.effects(trial) != Some(trial.coverage.effects()))
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
    /// Mutants that were caught.
    pub fn caught(&self) -> usize {
        self.mutants - self.survivors.len()
    }

    /// Survivors that change nothing.
    pub fn unchanged(&self) -> usize {
        self.survivors.iter().filter(|survivor| survivor.change != Change::Some).count()
    }

    /// Survivors without a known reason.
    pub fn unexplained(&self) -> impl Iterator<Item = &Survivor> {
        self.survivors.iter().filter(|survivor| survivor.reason.is_none())
    }
}
