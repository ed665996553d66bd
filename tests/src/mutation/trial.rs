//! The launches that every mutant must pass, with a record of the unbroken kernel's run.
use super::{Fate, Subject};
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, Error};
use ptx_sim::{Completion, Coverage, Options};
use rayon::prelude::*;

/// A function that launches once and returns the errors of the result.
type Launch = Box<dyn Fn(&Attention<SimDriver>) -> Result<Vec<String>, Error> + Send + Sync>;

/// A launch, with a function that checks it.
pub(super) struct Case {
    /// The name of the case in reports.
    pub name: String,
    /// Whether the case belongs to a sweep, which has many launches that differ in one number.
    pub sweep: bool,
    pub launch: Launch,
}

/// A seed, and the time at which copies land. Every schedule reveals races. The later schedules reveal errors
/// that the order of the first schedule hides.
pub(super) type Schedule = (u64, Completion);
/// All schedules. The first schedule is the usual schedule.
pub(super) const SCHEDULES: [Schedule; 3] =
    [(0, Completion::Late), (1, Completion::Eager), (2, Completion::Random)];

/// One launch, with a record of the unbroken kernel's run.
pub(super) struct Trial {
    case: Case,
    /// The coverage of the unbroken kernel.
    pub coverage: Coverage,
    /// Number of instructions that were executed, over all kernels of the launch.
    instructions: u64,
    /// Number of the first mutants (`SCOUTS`) that this trial caught.
    pub catches: usize,
}

impl Trial {
    /// Whether the trial belongs to a sweep. Such a trial only runs under the usual schedule.
    pub fn is_of_a_sweep(&self) -> bool {
        self.case.sweep
    }
}

/// Makes trials of `cases` for `subject`, whose PTX is `text`: the edge cases in order, then the sweeps, of
/// which the shortest come first.
///
/// # Panics
/// Panics if the kernel fails.
pub(super) fn trials(subject: &Subject, text: &str, cases: Vec<Case>) -> Vec<Trial> {
    let kernel = || Kernel::load(subject, text).expect("the simulator reads what the compiler writes");
    let unbroken = |kernel: &mut Kernel<'_>, case: Case| {
        let mut trial = Trial { case, coverage: Coverage::default(), instructions: 0, catches: 0 };
        let fate = kernel.launch(&trial, Options { coverage: true, ..options(SCHEDULES[0], u64::MAX) });
        assert_eq!(fate, None, "{}, unbroken: {}", subject.kernel.symbol, trial.case.name);
        let mut met = kernel.attention.driver().take_coverage();
        trial.instructions = met.values().map(|(_, instructions)| instructions).sum();
        trial.coverage = met.remove(subject.kernel.symbol).unwrap_or_default().0;
        trial
    };
    let mut trials: Vec<Trial> = cases.into_par_iter().map_init(kernel, unbroken).collect();
    trials.sort_by_key(|trial| if trial.case.sweep { trial.instructions } else { 0 });
    trials
}

/// Blocks run one after the other, because mutants already run in parallel.
fn options((seed, completion): Schedule, budget: u64) -> Options {
    Options { seed, completion, budget, max_reports: 1, parallel: false, ..Options::default() }
}

/// A kernel that is loaded on a simulated card.
pub(super) struct Kernel<'a> {
    subject: &'a Subject,
    attention: Attention<SimDriver>,
}

impl<'a> Kernel<'a> {
    /// Loads the module `text` as `subject`.
    pub fn load(subject: &'a Subject, text: &str) -> Result<Self, Error> {
        let attention = subject.simulator(Options::default());
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(subject.kernel.symbol, text)? };
        Ok(Kernel { subject, attention })
    }

    /// Runs the mutant in `trial`. Returns how the trial catches the mutant, if it does, and, with
    /// `compares`, a digest of the mutant's effects. Some mutants have endless loops, so a mutant may execute
    /// at most four times the instructions of the kernel.
    pub fn run(&self, trial: &Trial, schedule: Schedule, compares: bool) -> (Option<Fate>, Option<u64>) {
        let options = options(schedule, 4 * trial.instructions + 50_000);
        let noticed = self.launch(trial, Options { coverage: compares, ..options });
        let met = self.attention.driver().take_coverage().remove(self.subject.kernel.symbol);
        (noticed, met.map(|(coverage, _)| coverage.effects()))
    }

    fn launch(&self, trial: &Trial, options: Options) -> Option<Fate> {
        self.attention.driver().set_options(options);
        match (trial.case.launch)(&self.attention) {
            Ok(wrong) => (!wrong.is_empty()).then_some(Fate::Result),
            Err(error) => {
                let reports = self.attention.driver().take_reports();
                let kind = reports.first().map(|report| Fate::Checker(report.kind.name()));
                Some(kind.unwrap_or_else(|| Fate::Refused(error.to_string())))
            }
        }
    }
}
