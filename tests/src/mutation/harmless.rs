//! Mutants that change nothing that anybody can observe, and the reasons for this.
use super::{Subject, flow, flow::words};
use ferroflash::kernels::MaskKind;
use ptx_sim::mutate::{Mutant, Operator};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

mod hopper;
mod lines;
mod on_cache;
mod split;

use lines::{Source, has_source};

/// A class of harmless mutants.
struct Harmless {
    operators: &'static [Operator],
    /// A text that the instruction before or after the mutation contains.
    instruction: &'static str,
    /// One of the instruction's source lines: the end of its file's name, and a text in the line.
    source: Source,
    /// Another source line of the instruction, in the same form.
    within: Source,
    /// Whether the class applies to the kernel with this symbol.
    kernels: fn(&str) -> bool,
    /// The mask of the kernels, if the class applies to only one mask.
    mask: Option<MaskKind>,
    /// Whether the reason claims that no thread ever takes another path. If some thread took another path
    /// with a mutant, such a reason does not excuse the mutant.
    idle: bool,
    reason: &'static str,
}

const CLASS: Harmless = Harmless {
    operators: &[],
    instruction: "",
    source: ["", ""],
    within: ["", ""],
    kernels: |_| true,
    mask: None,
    idle: false,
    reason: "",
};

/// Source lines whose mutants are harmless under conditions that a class cannot express.
#[cfg(test)]
const NAMED: [Source; 7] = [SLACK[0], SLACK[1], EDGES[0], EDGES[1], MODEST, FIRST_STEP, ADVANCE];
const SLACK: [Source; 2] = [["softmax.rs", "> SLACK"], ["softmax.rs", "> self.slack"]];
const EDGES: [Source; 2] = [["overlap.rs", "if edge {"], ["mainloop.rs", "if edge {"]];
const MODEST: Source = ["softcap.rs", "if scale_log2 <= MODEST"];
const FIRST_STEP: Source = ["kernels-gpu/src/variant/blocks.rs", "$step(n, true)"];
const ADVANCE: Source = ["forward.rs", "kv.advance(block"];

/// The reason for keys that no row sees.
const SKIP: &str = "A warp skips keys that none of its rows sees, to save time. With the mask, these keys \
                    add nothing.";

const OFTEN: &str = "The kernel may rescale sums to the new maximum more often than needed. The slack only \
                     decides when it pays.";

const HARMLESS: &[Harmless] = &[
    Harmless {
        operators: &[Operator::DeleteWait],
        source: ["ring.rs", "wait_all();"],
        reason: "The kernel gives up a pipeline after its last stage has landed, so no copy is in flight.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::BarrierNumber],
        instruction: "bar.sync 0;",
        reason: "Every thread of the block passes this barrier, and no thread waits at another barrier at \
                 that time. The number is only a name.",
        ..CLASS
    },
    Harmless { operators: &[Operator::OffByOne], source: SLACK[0], reason: OFTEN, ..CLASS },
    Harmless { operators: &[Operator::OffByOne], source: SLACK[1], reason: OFTEN, ..CLASS },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["softmax.rs", "x == 0.0"],
        mask: Some(MaskKind::Full),
        reason: "Without a mask, every row sees a key, so no sum is 0. (With other masks, this mutant is \
                 caught.)",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::NeverBranch, Operator::Bound],
        source: ["store.rs", "if column == 0"],
        reason: QUAD,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateGuard],
        source: ["beside.rs", "value.to_bits(), is_mine)"],
        reason: QUAD,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ChangePredicate, Operator::DeleteGuard],
        source: ["beside.rs", "is_mine"],
        reason: QUAD,
        ..CLASS
    },
    // LLVM may compute both conditions at once, under the source line of the other condition.
    Harmless {
        operators: &[Operator::Bound],
        instruction: "`setp.eq.b32",
        source: ["store.rs", "if self.base == 0"],
        reason: QUAD,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::AlwaysBranch, Operator::OffByOne],
        source: ["overlap.rs", "n >= range.interior.1"],
        mask: Some(MaskKind::Full),
        reason: "Without a mask, only the last block of keys can be cut. The loop over blocks that need a \
                 mask ends after one step.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["blocks.rs", "warp.any(self.end.last() > 0"],
        reason: SKIP,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["mainloop.rs", "no row of this warp sees a key of this tile"],
        reason: SKIP,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["mainloop.rs", "if edge && !seen.any(tile_n, warp)"],
        reason: SKIP,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["forward.rs", "if i < range.end - range.start"],
        reason: "A tile that reaches this line sees at least one block of keys.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::Bound],
        source: ["global/rows.rs", "vector.base == 0"],
        reason: "If no log-sum-exp is wanted, its strides are 0 too, so base plus offset is always 0.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["specialised.rs", "for _ in range.start..range.end"],
        reason: "A tile that reaches this line sees at least one block of keys.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        instruction: "`setp.lt.u32",
        source: ["forward.rs", "range.start == range.end"],
        mask: Some(MaskKind::Local),
        reason: RANGES,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["forward.rs", "range.start == range.end"],
        mask: Some(MaskKind::Full),
        reason: SLICES,
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["forward.rs", "range.start == range.end"],
        reason: "A tile that sees no key copies and computes nothing. The usual path also stores O = 0 and a \
                 log-sum-exp of -inf.",
        ..CLASS
    },
    Harmless {
        operators: &[
            Operator::NegateBranch,
            Operator::AlwaysBranch,
            Operator::NeverBranch,
            Operator::OffByOne,
        ],
        source: ["forward.rs", "tile.store_nothing_seen"],
        mask: Some(MaskKind::Full),
        reason: SLICES,
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteArrive],
        source: ["device/tile/src/pipeline/mbarrier.rs", ""],
        mask: Some(MaskKind::Full),
        reason: "Without a mask, no warp skips a block of keys.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteBarrier],
        instruction: "bar.warp.sync",
        reason: "The warp stores O through rows of Q that only this warp uses now. Warp-wide instructions \
                 read these rows, and they have ended.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["", "copy_edge(&mut k"],
        reason: CUT,
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["", "copy_edge(&mut v"],
        reason: CUT,
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::NeverBranch, Operator::Bound],
        source: ["store.rs", "own.chunk() == 0"],
        reason: "All threads of a row compute an equal log-sum-exp. Any of them may store it, and so may all \
                 of them.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne, Operator::AlwaysBranch, Operator::NeverBranch],
        source: ["tensors.rs", "self.o.clear"],
        mask: Some(MaskKind::Causal),
        reason: WHOLE,
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne, Operator::AlwaysBranch, Operator::NeverBranch],
        source: ["tensors.rs", "self.lse.fill"],
        mask: Some(MaskKind::Causal),
        reason: WHOLE,
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["tensors.rs", "self.lse.fill"],
        mask: Some(MaskKind::Causal),
        reason: "With a causal mask, a tile whose rows see no key is not the last tile of its head. Equality \
                 occurs only for threads beyond the tile's rows, and another comparison excludes these \
                 threads.",
        ..CLASS
    },
];

const QUAD: &str =
    "The four lanes of a row hold equal numbers. Any of them may store its number, and so may all of them.";
/// The reason for stores of tiles that see no key.
const WHOLE: &str =
    "With a causal mask, a tile whose rows see no key is not the head's last tile: all of its rows exist.";
/// The reason for splits of a tile's keys.
const SLICES: &str =
    "Without a mask, no split is empty: the planner makes at most one split for every two blocks of keys.";
const RANGES: &str =
    "At equality, both branches give equal bounds, or a block goes through the other masked loop.";
const SATURATING: &str =
    "A saturating addition of at least 1: sum and summand are never equal, and the added number is never 0.";
const CUT: &str = "The copy checks the rows of any block. Only the last block of keys can be cut, and all \
                   rows of this block exist.";
const IDLE: &str = "In every launch, each warp makes the accesses of the unbroken kernel, with equal values, \
                    between equal synchronisations.";
const TANGENTS: &str = "Tangents with this relative precision are correct under any cap. The other tangents \
                        only take less time.";
const THREADS: &str = "The comparison's bound exceeds the number of threads in the block.";

/// The reason why `mutant` of `subject`, whose PTX is `text`, does no harm, or `None` if no reason is known.
/// `differs` states whether a thread took another path in any launch.
pub(super) fn reason(subject: &Subject, mutant: &Mutant, text: &str, differs: bool) -> Option<&'static str> {
    if mutant.operator == Operator::OffByOne
        && !differs
        && let Some(reason) = comparison(subject, &text[mutant.span.0..mutant.span.1], text)
    {
        return Some(reason);
    }
    // The path that rescales sums is the path on which lanes exchange their maxima. A branch around this path
    // is harmful.
    let rescales = || flow::forced(mutant, text).is_some_and(|path| path.contains("shfl.sync"));
    if SLACK.into_iter().any(|line| has_source(mutant, line)) && rescales() {
        return Some(OFTEN);
    }
    // On the path that masks scores, scores become infinities. A branch around this path is harmful.
    let masks = || flow::forced(mutant, text).is_some_and(|path| path.contains("0fFF800000"));
    if EDGES.into_iter().any(|line| has_source(mutant, line)) && masks() {
        return Some("To mask a block that needs no mask changes nothing.");
    }
    // The series on the path with relative precision has the constant -17/315. A branch to the other path is
    // harmful.
    let relative = || flow::forced(mutant, text).is_some_and(|path| path.contains("0fBD5D0DD1"));
    if has_source(mutant, MODEST) && relative() {
        return Some(TANGENTS);
    }
    if !differs && mutant.operator == Operator::NeverBranch && beyond_threads(subject, mutant, text) {
        return Some(THREADS);
    }
    if let Some(reason) = on_cache::reason(subject, mutant, text).or_else(|| hopper::reason(mutant, text)) {
        return Some(reason);
    }
    if subject.forward().is_some_and(|entry| entry.stages == 1)
        && let Some(reason) = single_stage(subject, mutant, text, differs)
    {
        return Some(reason);
    }
    let applies = |class: &&Harmless| {
        let has = |source: Source| source == ["", ""] || has_source(mutant, source);
        class.operators.contains(&mutant.operator)
            && !(differs && class.idle)
            && class.mask.is_none_or(|mask| subject.of.mask() == Some(mask))
            && mutant.description.contains(class.instruction)
            && (class.kernels)(subject.kernel.symbol)
            && has(class.source)
            && has(class.within)
    };
    let idle = (!differs).then_some(IDLE);
    let found = all().enumerate().find(|(_, class)| applies(class));
    found.map(|(number, class)| used(number, class)).or(idle)
}

/// The indices of the classes that matched a mutant in this process.
static USED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn used(number: usize, class: &'static Harmless) -> &'static str {
    USED.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    class.reason
}

/// The classes that matched no mutant, each with its line and its reason.
pub(super) fn unused() -> Vec<String> {
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let unused = all().enumerate().filter(|(number, _)| !used.contains(number));
    unused.map(|(_, class)| format!("{}: {}", class.source.join(": "), class.reason)).collect()
}

/// All classes.
fn all() -> impl Iterator<Item = &'static Harmless> {
    HARMLESS.iter().chain(on_cache::HARMLESS).chain(hopper::HARMLESS).chain(split::HARMLESS)
}

/// Like [`reason`], for kernels with a single stage. Such a kernel refills the stage in the step that reads
/// it.
fn single_stage(subject: &Subject, mutant: &Mutant, text: &str, differs: bool) -> Option<&'static str> {
    let first = subject.of.mask() == Some(MaskKind::Full) && has_source(mutant, FIRST_STEP);
    let of_step = has_source(mutant, ADVANCE);
    match mutant.operator {
        Operator::OffByOne if of_step && !differs => Some(CUT),
        Operator::DeleteBarrier
            if of_step && first && flow::waits_before_reading(text, mutant.span.1, i64::MAX) =>
        {
            Some(
                "In the first step, no thread has read the stage yet, and another barrier comes before the \
                 first read.",
            )
        }
        _ => None,
    }
}

/// The reason why equality never occurs in a comparison. The reason follows from the compared values, or from
/// the use of the result.
fn comparison(subject: &Subject, instruction: &str, text: &str) -> Option<&'static str> {
    let [_, predicate, ..] = words(instruction)[..] else { return None };
    let uses: Vec<&str> = text.lines().filter(|line| words(line).contains(&predicate)).collect();
    if uses.len() > 1 && uses.iter().all(|line| line.contains(instruction) || line.contains("xor.pred")) {
        return Some(SATURATING);
    }
    exceeds_threads(subject, instruction, text).then_some(THREADS)
}

/// Whether `instruction` compares a thread's index with a number that no thread has.
fn exceeds_threads(subject: &Subject, instruction: &str, text: &str) -> bool {
    let [_, _, a, b] = words(instruction)[..] else { return false };
    let thread = text.lines().any(|line| line.contains("%tid.x") && words(line).contains(&a));
    let last = subject.kernel.threads - 1;
    thread
        && b.parse::<u32>().is_ok_and(|limit| limit > last || limit == last && instruction.contains(".gt."))
}

/// Whether the guard of a branch is a comparison that [`exceeds_threads`] accepts.
fn beyond_threads(subject: &Subject, mutant: &Mutant, text: &str) -> bool {
    guard(mutant, text).is_some_and(|line| exceeds_threads(subject, line, text))
}

/// The comparison that computes the guard of a branch.
fn guard<'t>(mutant: &Mutant, text: &'t str) -> Option<&'t str> {
    let guard = words(&text[mutant.span.0..mutant.span.1]).first().copied()?;
    let sets = |line: &&str| line.contains("setp.") && words(line).get(1) == Some(&guard);
    text[..mutant.span.0].lines().rev().find(sets)
}
