//! The results of a launch, except for memory.

use crate::{Report, coverage::Coverage};

/// The results of a launch, except for memory.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Reports of findings, ordered by block. Kinds that are usually causes stand before kinds that are
    /// usually consequences.
    pub reports: Vec<Report>,
    /// Number of warp instructions that were executed.
    pub instructions: u64,
    /// The text that the kernel printed.
    pub output: String,
    /// The coverage of each instruction, if [`crate::Options::coverage`] is on.
    pub coverage: Coverage,
}
