//! The mutation score: every barrier, wait, commit and predicate of a kernel's PTX, broken one at a time, must be noticed.
//!
//! A mutant is *caught* where a checker of the simulator reports it or the result is wrong by the tolerance rule, on the problems that hit the
//! entry's edges. One that survives must have its reason in `mutation/harmless.rs`.
use crate::simulator_with;
use ferroflash::reference::{Loaded, Memory, Reference};
use ferroflash::{Attention, Driver, EntryInfo, Forward, MaskKind, SimDriver, SimStream, ptx};
use ptx_sim::mutate::{Mutant, Operator, mutants};
use ptx_sim::{Completion, Options};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

mod cases;
mod harmless;
mod report;

pub use report::{Evidence, write};

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
    /// The entry.
    pub entry: &'static str,
    /// Problems that each mutant had to pass.
    pub cases: usize,
    /// All mutants.
    pub mutants: usize,
    /// Reported by a checker, by kind.
    pub checkers: BTreeMap<&'static str, usize>,
    /// Refused at loading or launching.
    pub refused: usize,
    /// Not reported, but wrong.
    pub results: usize,
    /// All and survivors, by operator.
    pub operators: BTreeMap<Operator, [usize; 2]>,
    /// Those that nobody noticed.
    pub survivors: Vec<Survivor>,
}

/// A problem with what its result must be.
struct Expected {
    memory: Memory,
    reference: Reference,
}

impl From<Memory> for Expected {
    fn from(memory: Memory) -> Self {
        let reference = Reference::new(&memory.inputs().expect("cases are valid"));
        Expected { memory, reference }
    }
}

/// So many cases, the edges, also run without a log-sum-exp.
const EDGES: usize = 10;

/// Runs `text` as `entry` on every case until something is noticed.
fn fate<'a>(entry: &EntryInfo, text: &str, cases: impl Iterator<Item = &'a Expected>, options: Options) -> Fate {
    let attention = simulator_with(entry, options);
    if let Err(error) = attention.load_from(entry, text) {
        return Fate::Refused(error.to_string());
    }
    let failed = |error: ferroflash::Error| {
        let reports = attention.driver().take_reports();
        let kind = reports.first().map(|report| Fate::Checker(report.kind.name()));
        kind.unwrap_or_else(|| Fate::Refused(error.to_string()))
    };
    for (index, Expected { memory, reference }) in cases.enumerate() {
        match Loaded::new(&attention, memory, Some(entry.symbol)).and_then(|loaded| loaded.run()) {
            Ok(outcome) => {
                let verdict = outcome.judge(reference, memory.problem.dtype);
                if !verdict.is_some_and(|verdict| verdict.passed()) {
                    return Fate::Result;
                }
            }
            Err(error) => return failed(error),
        }
        if index < EDGES
            && let Err(error) = without_lse(&attention, entry, memory)
        {
            return failed(error);
        }
    }
    Fate::Survived
}

/// Launches without a log-sum-exp: stores to it would go nowhere.
fn without_lse(attention: &Attention<SimDriver>, entry: &EntryInfo, memory: &Memory) -> Result<(), ferroflash::Error> {
    let driver = attention.driver();
    let mut inputs = vec![];
    for bits in &memory.buffers {
        let bytes: Vec<u8> = bits.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let mut buffer = driver.allocate(bytes.len())?;
        driver.upload(&mut buffer, &bytes)?;
        inputs.push(buffer);
    }
    let o = driver.allocate(memory.o.span() * 2)?;
    let addresses: Vec<_> = inputs.iter().map(|buffer| driver.address(buffer)).collect();
    let forward = memory.forward(&addresses, driver.address(&o), driver.address(&o));
    let forward = Forward { lse: None, config: Some(entry.symbol), ..forward };
    let plan = attention.plan(&forward)?;
    // SAFETY: every view is of a buffer of this driver that lives until the launch, which runs at once, has ended.
    unsafe { attention.launch(&plan, &forward, &SimStream)? };
    driver.synchronize(&SimStream)
}

/// One schedule, one block after the other: mutants are what runs in parallel.
fn options(seed: u64, completion: Completion, budget: u64) -> Options {
    Options { seed, completion, budget, max_reports: 1, parallel: false, ..Options::default() }
}

/// Breaks `entry` in every way, calling `done` after each mutant.
///
/// # Panics
/// Where the kernel itself, unbroken, is not clean.
pub fn score(entry: &'static EntryInfo, started: impl FnOnce(usize), done: impl Fn() + Sync) -> Score {
    let text = ptx::source(entry.symbol).expect("this build carries every kernel");
    let all = mutants(&text, entry.symbol).expect("the simulator reads what the compiler writes");
    started(all.len());
    let expected = |cases: Vec<Memory>| cases.into_iter().map(Expected::from).collect::<Vec<_>>();
    let (first, sweeps) = (expected(cases::first(entry)), expected(cases::sweeps(entry)));
    let cases = || first.iter().chain(&sweeps);
    // Some loops of mutants do not end: they may take four times as long as the kernel.
    let mut budget = 10_000;
    let clean = loop {
        let fate = fate(entry, &text, cases(), options(0, Completion::Late, budget));
        if fate != Fate::Checker("runaway") || budget > 1 << 32 {
            break fate;
        }
        budget *= 2;
    };
    assert_eq!(clean, Fate::Survived, "{}, unbroken", entry.symbol);
    let end = |mutant: &Mutant| {
        let broken = mutant.apply(&text);
        let run = |seed, completion, sweeps: &[Expected]| {
            fate(entry, &broken, first.iter().chain(sweeps), options(seed, completion, 4 * budget))
        };
        // Races are found in any schedule: the others are for what the first one's order hides.
        // Whoever has a reason to survive needs no sweep to be believed.
        let expected = harmless::certain(entry, mutant, &text);
        let mut fate = run(0, Completion::Late, if expected { &[] } else { &sweeps });
        for (seed, completion) in [(1, Completion::Eager), (2, Completion::Random)] {
            if fate == Fate::Survived {
                fate = run(seed, completion, &[]);
            }
        }
        done();
        fate
    };
    let fates: Vec<Fate> = all.par_iter().map(end).collect();
    let mut score = tally(entry, &text, cases().count(), all.iter().zip(fates));
    if entry.mask == MaskKind::Full {
        for survivor in score.survivors.iter_mut().filter(|survivor| survivor.reason.is_none()) {
            let line = text.lines().nth(survivor.line as usize - 1).expect("a line of the text");
            let start = line.as_ptr() as usize - text.as_ptr() as usize;
            let probe = format!("{} trap; {}", &text[..start], &text[start..]);
            if fate(entry, &probe, cases(), options(0, Completion::Late, 4 * budget)) == Fate::Survived {
                survivor.reason = Some(harmless::DEAD);
            }
        }
    }
    score
}

fn tally<'a>(
    entry: &'static EntryInfo,
    text: &str,
    cases: usize,
    ends: impl Iterator<Item = (&'a Mutant, Fate)>,
) -> Score {
    let (checkers, operators, survivors) = (BTreeMap::new(), BTreeMap::new(), vec![]);
    let mut score =
        Score { entry: entry.symbol, cases, mutants: 0, checkers, refused: 0, results: 0, operators, survivors };
    for (mutant, fate) in ends {
        score.mutants += 1;
        let [all, survived] = score.operators.entry(mutant.operator).or_default();
        *all += 1;
        match fate {
            Fate::Checker(kind) => *score.checkers.entry(kind).or_default() += 1,
            Fate::Refused(_) => score.refused += 1,
            Fate::Result => score.results += 1,
            Fate::Survived => {
                *survived += 1;
                score.survivors.push(Survivor {
                    reason: harmless::reason(entry, mutant, text),
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
