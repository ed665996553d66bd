//! The results of a launch besides memory.

use crate::{Report, coverage::Coverage};

/// The results of a launch besides memory.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Findings, ordered by block. Kinds that are usually causes come before their consequences.
    pub reports: Vec<Report>,
    /// Warp instructions executed.
    pub instructions: u64,
    /// The text that the kernel printed.
    pub output: String,
    /// Coverage of each instruction, if [`crate::Options::coverage`] is on.
    pub coverage: Coverage,
}
