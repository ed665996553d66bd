//! Redundant waits, barriers and commits: on every path through the kernel, other instructions keep the same
//! order. A mutant that deletes or weakens one changes nothing. These reasons follow from the text alone, not
//! from reports of the simulator.
use super::flow;
use ptx_sim::mutate::{Mutant, Operator};

const COVERED: &str = "Shared memory is not read before the next wait and barrier, which cover this one.";
const FIRST: &str = "Nobody has touched shared memory but by copies, and nobody reads it before the next \
                     wait and barrier.";
const UNASKED: &str = "Nobody waits for a group of copies after it.";
const JOINED: &str = "The copies join the next group, and are not read before a wait for that one and a \
                      barrier.";
const CONVERGED: &str = "Since the barrier before, shared and device memory have been accessed by \
                         instructions of the whole warp alone: there is nothing that one lane did and \
                         another could miss.";
const FENCED: &str = "Since the fence before, no register of the products behind this one has been written.";
const LEFT: &str = "The source of every bulk store, if there was one, has been waited for since, and the \
                    kernel reads nothing of it: the stores end with the grid.";

/// Why `mutant` of the kernel `text` changes no order, if the text proves it.
pub(super) fn reason(mutant: &Mutant, text: &str) -> Option<&'static str> {
    let (start, end) = mutant.span;
    let old = &text[start..end];
    match mutant.operator {
        Operator::DeleteCommit if !flow::waits(text, end) => Some(UNASKED),
        // The next commit makes the group instead.
        Operator::DeleteCommit if flow::waits_before_reading(text, end, -1) => Some(JOINED),
        Operator::DeleteWait | Operator::WeakenWait if old.contains("bulk.wait_group") => {
            flow::has_left_before(text, start).then_some(LEFT)
        }
        Operator::DeleteFence if old.contains("wgmma.fence") => {
            flow::is_fenced_before(text, start).then_some(FENCED)
        }
        Operator::DeleteWait | Operator::WeakenWait => {
            let left = flow::left(old).filter(|_| old.contains("wait_group"))?;
            flow::waits_before_reading(text, end, i64::from(left)).then_some(COVERED)
        }
        Operator::DeleteBarrier if old.contains("bar.warp.sync") => {
            flow::nothing_of_single_lanes_before(text, start).then_some(CONVERGED)
        }
        Operator::DeleteBarrier if old.contains("bar.sync") => {
            let first = flow::nothing_but_copies_before(text, start);
            (first && flow::waits_before_reading(text, end, i64::MAX)).then_some(FIRST)
        }
        _ => None,
    }
}
