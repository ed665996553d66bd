//! Results of a verification.
use super::{Case, SEEDS};
use crate::tolerance::{Verdict, Worst};
use ferroflash::Error;
use kernels_gpu::exact::{Broken, Sequence};
use std::fmt;

/// A verified variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The variant's name.
    pub variant: &'static str,
    /// The kernels that passed every case.
    pub kernels: Vec<Verified>,
    /// Kernels without a case or a card, and the reason.
    pub skipped: Vec<(&'static str, String)>,
}

/// A verified kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// The kernel.
    pub symbol: &'static str,
    /// Number of launches.
    pub launches: usize,
    /// The worst elements relative to their tolerances: of O and LSE, or of gradients.
    pub worst: Vec<Worst>,
}

/// A query and a key of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct At {
    /// The case.
    pub case: Box<Case>,
    /// The sequence.
    pub sequence: u32,
    /// The query head.
    pub head: u32,
    /// The query's position.
    pub p: i32,
    /// The key.
    pub k: i32,
}

impl At {
    pub(super) fn new(case: &Case, of: &Sequence, [p, k]: [i32; 2]) -> Self {
        At { case: Box::new(case.clone()), sequence: of.index, head: of.head, p, k }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { case, sequence, head, p, k } = self;
        write!(f, "{case}: sequence {sequence}, head {head}, position {p}, key {k}")
    }
}

/// A variant that is not verified. `Debug` prints the text of `Display`, because `main` prints the `Debug` of
/// an error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A launch was refused or failed, or the simulator reported an access.
    #[error("{case}: {source}")]
    Refused {
        /// The case.
        case: Box<Case>,
        /// The error.
        source: Error,
    },
    /// The mask breaks a rule on which kernels rely.
    #[error("{case}: the mask breaks a rule on sequence {sequence}, head {head}: {rule}")]
    Broken {
        /// The case.
        case: Box<Case>,
        /// The sequence.
        sequence: u32,
        /// The query head.
        head: u32,
        /// The rule.
        rule: Broken,
    },
    /// Code of the caller panics on the host: a function of the mask or of the scores, the second definition,
    /// or the closure that makes the parameters. On a GPU, a function that panics fails the launch.
    #[error("{case}: {place}: {message}")]
    Panicked {
        /// The case.
        case: Box<Case>,
        /// The code that panics, and the sequence and head if it is a function.
        place: String,
        /// The panic's message.
        message: String,
    },
    /// `ScoreMod::block_bias` differs from `ScoreMod::score`.
    #[error(
        "{at}: `score` gives {score}, and \
         `block_bias` gives {block}: it must be `None` unless all scores of the block get the same bias"
    )]
    BlockBias {
        /// The query and the key.
        at: At,
        /// The score of the product 1.25.
        score: f32,
        /// The score of this pair if the block's bias replaces `score`.
        block: f32,
    },
    /// `ScoreMod::gradient` differs from the differences of `ScoreMod::score`.
    #[error(
        "{at}, scaled product {product}: the scores \
         have the derivative {derivative}, and differences of `score` give {differences:?}: {}",
        remedy(*is_additive)
    )]
    Gradient {
        /// The query and the key.
        at: At,
        /// The scaled product.
        product: f32,
        /// The derivative of the score by the scaled product, by `ScoreMod::gradient`.
        derivative: f64,
        /// The derivative by differences: to a smaller product, and to a larger one.
        differences: [f64; 2],
        /// Whether all scores are additive (`ScoreMod::ADDITIVE`).
        is_additive: bool,
    },
    /// `ScoreMod::entry` or `ScoreMod::weight` differs from the differences of `ScoreMod::score`.
    #[error(
        "{at}: the score reads entry {entry} of \
         the head's table, with the derivative {weight}, and differences of the table give {differences:?}: \
         `ScoreMod::entry` must name the entry that `score` reads, and `ScoreMod::weight` must be the \
         derivative by it"
    )]
    Entry {
        /// The query and the key.
        at: At,
        /// The entry, by `ScoreMod::entry`.
        entry: u32,
        /// The derivative of the score by the entry, by `ScoreMod::weight`.
        weight: f32,
        /// The derivative by differences: to a smaller entry, and to a larger one.
        differences: [f64; 2],
    },
    /// The gradients differ from those that are made of the kernel's functions.
    #[error("{case}: {failures}")]
    Gradients {
        /// The case.
        case: Box<Case>,
        /// The worst elements, with their places.
        failures: String,
    },
    /// The functions differ from the second definition.
    #[error(
        "{at}: the functions give the score \
         {function}, and the definition gives {should}"
    )]
    Definition {
        /// The query and the key.
        at: At,
        /// The score of the kernel's functions.
        function: f64,
        /// The score of the definition.
        should: f64,
    },
    /// O or LSE differs from attention that is made of the kernel's functions.
    #[error("{case}: {}", words(verdict.as_deref()))]
    Wrong {
        /// The case.
        case: Box<Case>,
        /// The worst elements, with their places; `None` if the outputs have wrong sizes.
        verdict: Option<Box<Verdict>>,
    },
    /// No kernel ran.
    #[error("no kernel was verified: {0}")]
    Nothing(Report),
}

impl Failure {
    pub(super) fn refused(case: &Case, source: Error) -> Self {
        Failure::Refused { case: Box::new(case.clone()), source }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn remedy(is_additive: bool) -> &'static str {
    if is_additive {
        "`ScoreMod::ADDITIVE` is true, so the derivative counts as 1: set it to false, and write `gradient`"
    } else {
        "`ScoreMod::gradient` must be the derivative of `ScoreMod::score`"
    }
}

fn words(verdict: Option<&Verdict>) -> String {
    let Some(verdict) = verdict else { return "the outputs have wrong sizes".to_owned() };
    verdict.failures().collect::<Vec<_>>().join("; ")
}

impl Verified {
    /// Adds another result of this kernel.
    fn add(&mut self, other: Verified) {
        self.launches += other.launches;
        for other in other.worst {
            match self.worst.iter_mut().find(|own| own.tensor == other.tensor) {
                Some(own) if own.parts() >= other.parts() => {}
                Some(own) => *own = other,
                None => self.worst.push(other),
            }
        }
    }
}

impl Report {
    /// Adds a launch.
    pub(super) fn add(&mut self, one: Verified) {
        match self.kernels.iter_mut().find(|all| all.symbol == one.symbol) {
            Some(all) => all.add(one),
            None => self.kernels.push(one),
        }
    }

    /// Returns whether the report has a kernel, verified or not.
    pub(super) fn mentions(&self, symbol: &str) -> bool {
        let skipped = self.skipped.iter().map(|(symbol, _)| *symbol);
        self.kernels.iter().map(|kernel| kernel.symbol).chain(skipped).any(|other| other == symbol)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variant {}, seeds {SEEDS:?}", self.variant)?;
        for Verified { symbol, launches, worst } in &self.kernels {
            write!(f, "\n  {symbol}: {launches} launches are right; worst")?;
            for (n, worst) in worst.iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                write!(f, "{comma} {} {:.1e} of {:.1e}", worst.tensor, worst.error, worst.tolerance)?;
            }
        }
        self.skipped.iter().try_for_each(|(symbol, reason)| write!(f, "\n  {symbol}: not verified: {reason}"))
    }
}
