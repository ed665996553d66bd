//! A few mutants of a kernel on a few of its launches: not its score, but that what is planted in a kernel of
//! its kind is noticed at all, in seconds.
use super::{Fate, Sample, Subject, cases, fate, harmless, planted, redundant, trial};
use ptx_sim::mutate::Mutant;
use rayon::prelude::*;

/// How the mutants of a [`spot`] ended.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The kernel's symbol.
    pub entry: &'static str,
    /// Its mutants that were run, and why those do no harm that survive, where that is known: other launches
    /// may catch the others.
    pub ends: Vec<(Mutant, Fate, Option<&'static str>)>,
}

impl Spot {
    /// Mutants that were caught.
    pub fn caught(&self) -> usize {
        self.ends.iter().filter(|(_, fate, _)| *fate != Fate::Survived).count()
    }
}

/// Breaks a kernel in the ways of `sample`, on its first edges.
///
/// # Panics
/// Where the kernel itself, unbroken, is not clean.
pub fn spot(subject: &Subject, sample: Sample) -> Spot {
    let (text, drawn, _) = planted(subject, sample);
    let trials = trial::trials(subject, &text, cases::few(subject));
    let end = |mutant: Mutant| {
        let (fate, _) = fate(subject, &mutant, &text, &trials);
        let known = || redundant::reason(&mutant, &text).or(harmless::reason(subject, &mutant, &text, true));
        let reason = if fate == Fate::Survived { known() } else { None };
        (mutant, fate, reason)
    };
    Spot { entry: subject.kernel.symbol, ends: drawn.into_par_iter().map(end).collect() }
}
