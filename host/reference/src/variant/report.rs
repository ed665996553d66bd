//! Results of a verification.
use super::{Case, SEEDS};
use crate::tolerance::Verdict;
use ferroflash::Error;
use kernels_gpu::exact::Broken;
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
    /// The worst elements of O and LSE, relative to their tolerances.
    pub worst: Verdict,
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
        "{case}: sequence {sequence}, head {head}, position {p}, key {k}: `score` gives {score}, and \
         `block_bias` gives {block}: it must be `None` unless all scores of the block get the same bias"
    )]
    BlockBias {
        /// The case.
        case: Box<Case>,
        /// The sequence.
        sequence: u32,
        /// The query head.
        head: u32,
        /// The query's position.
        p: i32,
        /// The key.
        k: i32,
        /// The score of the product 1.25.
        score: f32,
        /// The score of this pair if the block's bias replaces `score`.
        block: f32,
    },
    /// The functions differ from the second definition.
    #[error(
        "{case}: sequence {sequence}, head {head}, position {p}, key {k}: the functions give the score \
         {function}, and the definition gives {should}"
    )]
    Definition {
        /// The case.
        case: Box<Case>,
        /// The sequence.
        sequence: u32,
        /// The query head.
        head: u32,
        /// The query's position.
        p: i32,
        /// The key.
        k: i32,
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

fn words(verdict: Option<&Verdict>) -> String {
    let Some(verdict) = verdict else { return "the outputs have wrong sizes".to_owned() };
    verdict.failures().collect::<Vec<_>>().join("; ")
}

impl Verified {
    /// Both results of one kernel.
    pub(super) fn and(&self, other: &Verified) -> Verified {
        let launches = self.launches + other.launches;
        Verified { launches, worst: self.worst.or_worse(&other.worst), ..*self }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variant {}, seeds {SEEDS:?}", self.variant)?;
        for Verified { symbol, launches, worst } in &self.kernels {
            write!(f, "\n  {symbol}: {launches} launches are right; worst")?;
            for (n, worst) in worst.worst().iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                write!(f, "{comma} {} {:.1e} of {:.1e}", worst.tensor, worst.error, worst.tolerance)?;
            }
        }
        self.skipped.iter().try_for_each(|(symbol, reason)| write!(f, "\n  {symbol}: not verified: {reason}"))
    }
}
