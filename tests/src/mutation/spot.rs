//! Runs a few mutants of a kernel on a few of its launches. The result is no score: it shows in seconds that
//! tests can notice mutants of this kind of kernel at all.
use super::{Fate, Sample, Subject, cases, fate, harmless, planted, redundant, trial};
use ptx_sim::mutate::Mutant;
use rayon::prelude::*;

/// The results of a [`spot`].
#[derive(Clone, Debug)]
pub struct Spot {
    /// The symbol of the kernel.
    pub entry: &'static str,
    /// The mutants that ran, each with its outcome and, for a survivor, the reason why it does no harm. A
    /// survivor without a reason may fail in other launches.
    pub ends: Vec<(Mutant, Fate, Option<&'static str>)>,
}

impl Spot {
    /// Number of mutants that were caught.
    pub fn caught(&self) -> usize {
        self.ends.iter().filter(|(_, fate, _)| *fate != Fate::Survived).count()
    }
}

/// Runs the mutants of `sample` on the first edge cases of the kernel.
///
/// # Panics
/// Panics if the unbroken kernel fails.
pub fn spot(subject: &Subject, sample: Sample) -> Spot {
    let (text, drawn, _) = planted(subject, sample);
    let trials = trial::trials(subject, &text, cases::few(subject));
    let end = |mutant: Mutant| {
        let (fate, ..) = fate(subject, &mutant, &text, &trials, false);
        let known = || redundant::reason(&mutant, &text).or(harmless::reason(subject, &mutant, &text, true));
        let reason = if fate == Fate::Survived { known() } else { None };
        (mutant, fate, reason)
    };
    Spot { entry: subject.kernel.symbol, ends: drawn.into_par_iter().map(end).collect() }
}
