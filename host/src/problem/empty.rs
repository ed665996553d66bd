//! Problems without queries, whose launches do nothing.
use super::Problem;
use crate::request::{Invariance, Splits};

impl Problem {
    /// Returns whether there is no sequence or no row of Q, so that a launch has nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        let [[batches, rows, ..], ..] = self.shapes();
        [self.batch, batches, rows].contains(&0)
    }

    /// Returns a problem of at least one sequence with one query and one key, whose kernel needs no scratch
    /// memory. Planning selects a kernel for it that the launch of an empty problem names and does not run.
    pub(crate) fn filled(&self) -> Self {
        let some = |size: usize| size.max(1);
        Problem {
            batch: some(self.batch),
            seqlen_q: some(self.seqlen_q),
            seqlen_k: some(self.seqlen_k),
            varlen: self.varlen.map(|rows| rows.map(some)),
            splits: Splits::Auto,
            invariance: Invariance::None,
            ..*self
        }
        .sinks(false)
    }
}
