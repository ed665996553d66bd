//! The mutation score: every barrier, wait, commit and predicate of a kernel's PTX, broken one at a time, must be noticed.
//!
//! A mutant is *caught* where a checker of the simulator reports it or the result is wrong by the tolerance rule, on the problems that hit the
//! entry's edges. One that survives must have its reason in `mutation/harmless.rs`.
use ferroflash::{ENTRIES, EntryInfo, Grid, MaskKind, ptx};
use ptx_sim::mutate::{Mutant, Operator, mutants};
use rayon::prelude::*;
use serde::Serialize;
use spec::{COMBINES, KernelInfo};
use std::collections::BTreeMap;

mod cases;
mod flow;
mod harmless;
mod report;
mod trial;

pub use report::{Evidence, write};
use trial::{Kernel, SCHEDULES, Trial};

/// A kernel to break.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// It.
    pub kernel: KernelInfo,
    /// The entry with which it is launched: itself, or one whose slices it merges.
    pub entry: &'static EntryInfo,
}

impl Subject {
    /// Every compiled kernel, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        let entries = ENTRIES.iter().map(|entry| Subject { kernel: entry.into(), entry });
        // Under a causal mask some slices are empty.
        let splits = |entry: &&EntryInfo| entry.grid == Grid::Split && entry.mask == MaskKind::Causal;
        let combines = COMBINES.iter().flat_map(move |combine| {
            let of = |entry: &&EntryInfo| (entry.dtype, entry.head_dim) == (combine.dtype, combine.head_dim);
            let entries = ENTRIES.iter().filter(splits).filter(of).take(1);
            entries.map(|entry| Subject { kernel: combine.kernel, entry })
        });
        entries.chain(combines)
    }

    /// Whether it merges what another kernel has left.
    pub fn merges(&self) -> bool {
        self.kernel.symbol != self.entry.symbol
    }
}

/// How a mutant ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A checker reported this kind.
    Checker(&'static str),
    /// The launch was refused, or the PTX.
    Refused(String),
    /// No report, but the result is wrong.
    Result,
    /// Nobody noticed.
    Survived,
}

/// A survivor and why that does no harm.
#[derive(Clone, Debug, Serialize)]
pub struct Survivor {
    /// Whether any thread went another way than in the unbroken kernel, in any launch. Else it is *idle*.
    pub differs: bool,
    /// What was changed.
    pub operator: Operator,
    /// Line of the PTX.
    pub line: u32,
    /// Its source, innermost first: `file:line (function)`.
    pub source: Vec<String>,
    /// The instruction before and after.
    pub description: String,
    /// Why nothing can come of it; `None` fails the run.
    pub reason: Option<&'static str>,
}

/// How an entry's mutants ended.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The kernel's symbol.
    pub entry: &'static str,
    /// Launches that each mutant had to pass.
    pub launches: usize,
    /// All mutants.
    pub mutants: usize,
    /// Reported by a checker, by kind.
    pub checkers: BTreeMap<&'static str, usize>,
    /// Refused at loading or launching.
    pub refused: usize,
    /// Not reported, but wrong.
    pub results: usize,
    /// All, survivors and those of them that were idle, by operator.
    pub operators: BTreeMap<Operator, [usize; 3]>,
    /// Those that nobody noticed.
    pub survivors: Vec<Survivor>,
}

/// Breaks `subject` in every way, calling `done` after each mutant.
///
/// # Panics
/// Where the kernel itself, unbroken, is not clean.
pub fn score(subject: &Subject, started: impl FnOnce(usize), done: impl Fn() + Sync) -> Score {
    let symbol = subject.kernel.symbol;
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let mut all = mutants(&text, symbol).expect("the simulator reads what the compiler writes");
    flow::name_comparisons(&mut all, &text);
    started(all.len());
    let trials = trial::trials(subject, &text);
    let end = |mutant: &Mutant| {
        let fate = fate(subject, mutant, &text, &trials);
        done();
        fate
    };
    let fates: Vec<Fate> = all.par_iter().map(end).collect();
    tally(subject, &text, &trials, all.iter().zip(fates))
}

/// Runs `mutant` until something is noticed, in every trial in which it differs from the unbroken kernel.
fn fate(subject: &Subject, mutant: &Mutant, text: &str, trials: &[Trial]) -> Fate {
    let kernel = match Kernel::load(subject, &mutant.apply(text)) {
        Ok(kernel) => kernel,
        Err(error) => return Fate::Refused(error.to_string()),
    };
    let schedules = if mutant.orders() { &SCHEDULES[..] } else { &SCHEDULES[..1] };
    for (index, schedule) in schedules.iter().enumerate() {
        let due = |trial: &&Trial| mutant.differs(&trial.coverage) && !(trial.sweep && index > 0);
        if let Some(fate) = trials.iter().filter(due).find_map(|trial| kernel.run(trial, *schedule)) {
            return fate;
        }
    }
    Fate::Survived
}

fn tally<'a>(subject: &Subject, text: &str, trials: &[Trial], ends: impl Iterator<Item = (&'a Mutant, Fate)>) -> Score {
    let (checkers, operators, survivors) = (BTreeMap::new(), BTreeMap::new(), vec![]);
    let mut score = Score {
        entry: subject.kernel.symbol,
        launches: trials.len(),
        mutants: 0,
        checkers,
        refused: 0,
        results: 0,
        operators,
        survivors,
    };
    for (mutant, fate) in ends {
        score.mutants += 1;
        let [all, survived, idle] = score.operators.entry(mutant.operator).or_default();
        *all += 1;
        match fate {
            Fate::Checker(kind) => *score.checkers.entry(kind).or_default() += 1,
            Fate::Refused(_) => score.refused += 1,
            Fate::Result => score.results += 1,
            Fate::Survived => {
                *survived += 1;
                let differs = trials.iter().any(|trial| mutant.differs(&trial.coverage));
                *idle += usize::from(!differs);
                score.survivors.push(Survivor {
                    differs,
                    reason: harmless::reason(subject, mutant, text, differs),
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

    /// Survivors without a reason.
    pub fn unexplained(&self) -> impl Iterator<Item = &Survivor> {
        self.survivors.iter().filter(|survivor| survivor.reason.is_none())
    }
}
