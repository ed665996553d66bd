//! Harmless mutants of Hopper's kernels.
use super::{CLASS, Harmless, OFTEN, has_source, lines::Source};
use crate::mutation::flow;
use ferroflash::kernels::MaskKind;
use ptx_sim::mutate::{Mutant, Operator};

const GROWN: Source = ["hopper/mainloop.rs", "match grown {"];
const RARE: Source = ["wgmma.rs", "if rare {"];
/// The source lines that [`reason`] looks for.
#[cfg(test)]
pub(super) const LINES: [Source; 2] = [GROWN, RARE];

fn is_hopper(symbol: &str) -> bool {
    symbol.starts_with("hopper_")
}

/// Whether the kernel works on varlen sequences or pages, for which the producer broadcasts tile info.
fn has_notes(symbol: &str) -> bool {
    symbol.starts_with("hopper_packed_") || symbol.starts_with("hopper_paged_")
}

/// The reason for the threads that store a box.
const SENDERS: &str = "Every thread of the warpgroup has passed a barrier behind the fence, and waits for \
                       its own stores. Any thread may store the box, and so may all threads, because the \
                       bytes are equal.";

pub(super) const HARMLESS: &[Harmless] = &[
    Harmless {
        operators: &[Operator::DeleteGuard, Operator::NegateGuard],
        instruction: "`@wanted ld.shared",
        source: ["stage_guard.rs", "ld_shared_v4_b32_if(self.state.info()"],
        kernels: has_notes,
        reason: "The kernel joins the words of all lanes, and lanes that read nothing have 0. Whichever lane \
                 reads, the result is the tile info. Lane 0 reads because lane 0 also releases the stage: \
                 the card's racecheck orders a lane by its own arrivals.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::Bound],
        instruction: ", 0;` becomes `setp.eq.b32",
        source: ["spec/src/order.rs", "WorkTile {"],
        kernels: is_hopper,
        reason: "LLVM tests here whether the lane is its warp's elected lane. Another lane may take its \
                 place.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::Bound],
        instruction: "`max.s32",
        source: ["mainloop.rs", "while n > self.range.start {"],
        kernels: is_hopper,
        mask: Some(MaskKind::Local),
        reason: "The kernel masks one more block than needed. This takes time and changes nothing.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::Operand],
        instruction: "`selp.b32",
        source: ["mainloop.rs", "while n > self.range.start {"],
        kernels: is_hopper,
        mask: Some(MaskKind::Local),
        reason: "If the end of a window overflows, it becomes 0 or -1 instead of the largest number. The \
                 kernel then masks all blocks.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch],
        source: ["warpgroup.rs", "if W > 1 && index == 0 {"],
        kernels: is_hopper,
        reason: "Another of the two or three warpgroups has the first turn.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteGuard, Operator::NegateGuard, Operator::Bound],
        source: ["store_buffer.rs", "to.store_if::<C>(tile"],
        kernels: is_hopper,
        reason: SENDERS,
        ..CLASS
    },
    // LLVM may test this condition once, before the loop.
    Harmless {
        operators: &[Operator::ChangePredicate],
        instruction: ", 1, 0, %p",
        source: ["hopper/wide.rs", "tiles.receive(&mut q) else"],
        kernels: is_hopper,
        reason: SENDERS,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteArrive],
        source: ["hopper/forward.rs", "group.run(Ab(&mut so_far.acc_o"],
        kernels: is_hopper,
        reason: "No producer refills the stage after the last product of a block.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteBarrier],
        source: ["warpgroup.rs", "barrier::sync_named(self.mine"],
        kernels: is_hopper,
        reason: "The order of the warpgroups' products only affects speed. (If a turn is passed on twice \
                 before it is taken, the mutant is caught.)",
        ..CLASS
    },
];

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
