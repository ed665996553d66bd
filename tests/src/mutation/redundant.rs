//! Redundant waits, barriers and commits: on every path through the kernel, other instructions keep the same
//! order. A mutant that deletes or weakens such an instruction changes nothing. These reasons follow from the
//! text alone, not from reports of the simulator.
use super::flow;
use ptx_sim::mutate::{Mutant, Operator};

const COVERED: &str = "No thread reads shared memory before the next wait and barrier, which replace this \
                       one.";
const FIRST: &str = "Only copies have touched shared memory, and no thread reads it before the next wait and \
                     barrier.";
const UNASKED: &str = "No thread waits for a group of copies after this one.";
const JOINED: &str = "The copies join the next group. No thread reads them before a wait for that group and \
                      a barrier.";
const CONVERGED: &str = "Since the previous barrier, only instructions of the whole warp have accessed \
                         shared and device memory. No lane can miss the work of another lane.";
const FENCED: &str = "Since the previous fence, no instruction has written a register of the products behind \
                      this fence.";
const LEFT: &str = "A later wait covers the source of every bulk store, and the kernel reads none of the \
                    stored memory. The stores end with the grid.";

/// The reason why `mutant` of the kernel `text` changes no order, if the text proves it.
pub(super) fn reason(mutant: &Mutant, text: &str) -> Option<&'static str> {
    let (start, end) = mutant.span;
    let old = &text[start..end];
    match mutant.operator {
        Operator::DeleteCommit if !flow::waits(text, end) => Some(UNASKED),
        // Without this commit, the next commit makes the group.
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
