//! Mutants that change nothing that anybody could observe, with the reason.
use ferroflash::{EntryInfo, MaskKind};
use ptx_sim::mutate::{Mutant, Operator};
use std::path::Path;

/// A class of mutants that do no harm.
struct Harmless {
    operators: &'static [Operator],
    /// A part of the instruction before and after.
    instruction: &'static str,
    /// A file of one of the source lines, and a part of that line.
    source: [&'static str; 2],
    /// Only under this mask.
    mask: Option<MaskKind>,
    /// Whether the reason needs no sweep over problems to be believed.
    certain: bool,
    reason: &'static str,
}

const CLASS: Harmless =
    Harmless { operators: &[], instruction: "", source: ["", ""], mask: None, certain: true, reason: "" };

/// Keys that nobody sees.
const SKIP: &str = "A warp skips keys that none of its rows sees to save time: masked, they add nothing.";

const OFTEN: &str =
    "Sums may be rescaled to the new maximum more often than needed: the slack only says when it is worth it.";

const HARMLESS: &[Harmless] = &[
    Harmless {
        operators: &[Operator::BarrierNumber],
        instruction: "bar.sync 0;",
        reason: "Every thread of the block passes this barrier, and nobody waits at another at that time: the number is a name only.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne, Operator::NeverBranch],
        source: ["softmax.rs", "SLACK"],
        reason: OFTEN,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["softmax.rs", "x == 0.0"],
        mask: Some(MaskKind::Full),
        reason: "Without a mask every row sees a key, so that no sum is 0. (Under the other masks this mutant is caught.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::NeverBranch],
        source: ["store.rs", "if column == 0"],
        reason: "The four lanes of a row hold the same number: each of them may store it, and all of them.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ConstantSourceSize],
        instruction: "cp.async",
        reason: "Columns of V beyond the head dim reach only columns of O that nobody stores; this copy is of whole tiles, which rows in bounds follow. \
                 (The same copies of K are caught, by NaN in these columns.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteCommit],
        instruction: "cp.async.commit_group",
        reason: "The last step starts no copy: the group is empty.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::AlwaysBranch, Operator::OffByOne],
        source: ["overlap.rs", "interior.1"],
        reason: "One more block goes through the masked path, in which masking a block that needs none changes nothing.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["mainloop.rs", "unseen"],
        reason: SKIP,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["mainloop.rs", "Mask::LEFT && Mask::first_key"],
        reason: SKIP,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["mainloop.rs", "this warp's rows see none of these keys"],
        reason: SKIP,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["forward.rs", "if i < range.end - range.start"],
        reason: "A tile that comes this far sees at least one block of keys.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["global.rs", "vector.base == 0"],
        reason: "Where no log-sum-exp is wanted, its strides are 0, too: base plus offset is 0 in any case.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::AlwaysBranch],
        source: ["softmax.rs", "SLACK"],
        reason: OFTEN,
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["specialised.rs", "for _ in range.start..range.end"],
        reason: "A tile that comes this far sees at least one block of keys.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::AlwaysBranch],
        source: ["overlap.rs", "if edge"],
        reason: "Masking a block that needs no mask changes nothing.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["mask.rs", ""],
        mask: Some(MaskKind::Local),
        reason: "Ranges of blocks: at equality the bounds are the same, or a block goes through the other masked loop.",
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["fragment.rs", "end[m]"],
        mask: Some(MaskKind::Local),
        reason: "In a block at the left edge of a wide window no row's right edge lies: the comparison with it is always true.",
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        instruction: "setp.ge.s32",
        mask: Some(MaskKind::Full),
        reason: SKIP,
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        instruction: "setp.lt.u32",
        source: ["cp_async.rs", ""],
        reason: CUT,
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        instruction: "setp.lt.u32",
        source: ["shared.rs", ""],
        reason: CUT,
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteBarrier],
        instruction: "bar.warp.sync",
        reason: "The rows of Q through which O is stored are one warp's, whose reads of them are warp-wide instructions and have ended.",
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["store.rs", ""],
        mask: Some(MaskKind::Causal),
        reason: WHOLE,
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["global.rs", ""],
        mask: Some(MaskKind::Causal),
        reason: WHOLE,
        certain: false,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::AlwaysBranch, Operator::NeverBranch],
        source: ["store.rs", ""],
        mask: Some(MaskKind::Causal),
        reason: WHOLE,
        certain: false,
        ..CLASS
    },
];

/// Stores of tiles that see nothing.
const WHOLE: &str =
    "A tile whose rows see no key is not the last of its head under a causal mask: all of its rows exist.";
/// Why code of an entry without a mask may never run.
pub(super) const DEAD: &str = "Never reached, as a probe shows: without a mask no warp skips a block of keys.";
const COVERED: &str =
    "Shared memory is not read before the next wait and barrier, which cover this one: Q is not kept in registers.";
const EXTRA: &str =
    "Arrivals at a barrier at which the producer waits no more: the block ends before anybody could miss them.";
const EQUAL: &str = "A minimum or maximum: where both are equal it does not matter which is taken.";
const SATURATING: &str =
    "A saturating addition of at least 1: sum and summand are never equal, nor is what is added 0.";
const CUT: &str = "The prologue checks the rows of each block that it copies; only the last block of keys can be cut, and in this one all rows exist.";
const THREADS: &str = "The block has fewer threads than the number that a thread's is compared with.";

/// Why `mutant` of `entry`, whose PTX is `text`, does no harm, where that is known.
pub(super) fn reason(entry: &EntryInfo, mutant: &Mutant, text: &str) -> Option<&'static str> {
    find(entry, mutant, text).map(|(reason, _)| reason)
}

/// Whether it is known for certain, so that the mutant need not run on every problem.
pub(super) fn certain(entry: &EntryInfo, mutant: &Mutant, text: &str) -> bool {
    find(entry, mutant, text).is_some_and(|(_, certain)| certain)
}

fn find(entry: &EntryInfo, mutant: &Mutant, text: &str) -> Option<(&'static str, bool)> {
    if mutant.operator == Operator::OffByOne
        && let Some(reason) = comparison(entry, &text[mutant.span.0..mutant.span.1], text)
    {
        return Some((reason, true));
    }
    let after = &text[mutant.span.1..];
    let arrives = after.split(';').take(4).any(|statement| statement.contains("bar.arrive"));
    if mutant.operator == Operator::NeverBranch && arrives {
        return Some((EXTRA, false));
    }
    // Where the text has nothing but stores and copies to shared memory up to the next wait and the barrier behind it.
    let at = |word: &str| after.find(word).unwrap_or(after.len());
    let read = at("ldmatrix").min(at("ld.shared"));
    let barrier =
        at("cp.async.wait_group") + after[at("cp.async.wait_group")..].find("bar.sync").unwrap_or(after.len());
    if matches!(mutant.operator, Operator::DeleteWait | Operator::WeakenWait | Operator::DeleteBarrier)
        && barrier < read
    {
        return Some((COVERED, false));
    }
    let applies = |class: &&Harmless| {
        let [file, code] = class.source;
        class.operators.contains(&mutant.operator)
            && class.mask.is_none_or(|mask| mask == entry.mask)
            && mutant.description.contains(class.instruction)
            && (file.is_empty()
                || mutant
                    .source
                    .iter()
                    .any(|line| line.file.ends_with(file) && code_at(&line.file, line.line).contains(code)))
    };
    HARMLESS.iter().find(applies).map(|class| (class.reason, class.certain))
}

/// Comparisons whose result at equality does not matter, by what the PTX does with it.
fn comparison(entry: &EntryInfo, instruction: &str, text: &str) -> Option<&'static str> {
    let words: Vec<&str> = instruction.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()).collect();
    let [_, predicate, a, b] = words[..] else { return None };
    let uses: Vec<&str> =
        text.lines().filter(|line| line.split([' ', '\t', ',', ';', '!', '@']).any(|w| w == predicate)).collect();
    // The comparison itself, and a selection between the two that were compared.
    if let [_, selection] = uses[..]
        && selection.contains("selp.")
        && [a, b].iter().all(|operand| selection.split([' ', '\t', ',', ';']).any(|word| word == *operand))
    {
        return Some(EQUAL);
    }
    if uses.len() > 1 && uses.iter().all(|line| line.contains(instruction) || line.contains("xor.pred")) {
        return Some(SATURATING);
    }
    let thread = text.lines().any(|line| line.contains("%tid.x") && line.split([' ', '\t', ',']).any(|word| word == a));
    (thread && b.parse::<u32>().is_ok_and(|limit| limit >= entry.threads)).then_some(THREADS)
}

/// A line of this repository; nothing where it is of somebody else's.
fn code_at(file: &str, line: u32) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
    text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default().to_owned()
}
