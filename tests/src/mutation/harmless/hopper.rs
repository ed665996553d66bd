//! Harmless mutants of Hopper's kernels.
use super::{OFTEN, has_source, lines::Source};
use crate::mutation::flow;
use ptx_sim::mutate::{Mutant, Operator};

const GROWN: Source = ["hopper/mainloop.rs", "match grown {"];
const RARE: Source = ["wgmma.rs", "if rare {"];
/// The source lines that [`reason`] looks for.
#[cfg(test)]
pub(super) const LINES: [Source; 2] = [GROWN, RARE];

/// The reason why `mutant` of the kernel `text` does no harm, under conditions that a class cannot express.
pub(super) fn reason(mutant: &Mutant, text: &str) -> Option<&'static str> {
    let branches = [Operator::NegateBranch, Operator::AlwaysBranch, Operator::NeverBranch];
    // The path that rescales sums is the path on which lanes exchange their maxima. A branch around this path
    // is harmful.
    let grown = has_source(mutant, GROWN);
    if grown && flow::forced(mutant, text).is_some_and(|path| path.contains("shfl.sync")) {
        return Some(OFTEN);
    }
    let rare = branches.contains(&mutant.operator) && has_source(mutant, RARE);
    (rare && flow::skips_a_meeting_alone(mutant, text)).then_some(
        "The mutant skips a barrier of a warp that is already converged. Only ptxas needs the branch.",
    )
}
