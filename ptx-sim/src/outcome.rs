//! What a launch leaves beside memory.

use crate::{Report, coverage::Coverage};

/// The results of a launch besides memory.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Findings: causes before what usually follows from them, otherwise block by block.
    pub reports: Vec<Report>,
    /// Warp instructions executed.
    pub instructions: u64,
    /// The text that the kernel printed.
    pub output: String,
    /// Coverage of each instruction, if [`Options::coverage`] is on.
    pub coverage: Coverage,
}
