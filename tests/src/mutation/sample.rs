//! Selects mutants, for runs that do not run all of them.
use ptx_sim::mutate::{Mutant, Operator};
use reference::Random;
use std::collections::BTreeMap;

/// A selection of mutants per operator of a kernel, which a seed determines. The selection is the same on
/// every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The largest number of mutants per operator; `None` selects all.
    pub each: Option<usize>,
    /// The seed of the selection.
    pub seed: u64,
}

impl Sample {
    /// The selection of all mutants.
    pub const ALL: Sample = Sample { each: None, seed: 0 };

    /// The selected mutants among `all`, which are the mutants of `kernel`, in the order of the text.
    pub(super) fn of(self, kernel: &str, all: Vec<Mutant>) -> Vec<Mutant> {
        let Some(each) = self.each else { return all };
        let seed = kernel.bytes().fold(self.seed, |seed, byte| Random::new(seed ^ u64::from(byte)).bits());
        let mut random = Random::new(seed);
        let mut operators: BTreeMap<Operator, Vec<(u64, Mutant)>> = BTreeMap::new();
        for mutant in all {
            operators.entry(mutant.operator).or_default().push((random.bits(), mutant));
        }
        let drawn = operators.into_values().flat_map(|mut mutants| {
            mutants.sort_by_key(|(number, _)| *number);
            mutants.truncate(each);
            mutants
        });
        let mut drawn: Vec<Mutant> = drawn.map(|(_, mutant)| mutant).collect();
        drawn.sort_by_key(|mutant| (mutant.span.0, mutant.operator));
        drawn
    }
}
