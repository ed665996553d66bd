//! Harmless mutants of kernels that read integers from device memory: varlen kernels, and kernels on caches.
use super::{CLASS, Harmless, flow::words, guard, has_source, lines::Source};
use crate::mutation::Subject;
use core::mem::offset_of;
use ferroflash::spec::{DecodeParams, PerHead};
use ptx_sim::mutate::{Mutant, Operator};

const LENT: Source = ["block.rs", "block.sync();"];
/// A source line under which LLVM also tests whether a lane has columns.
const WEIGHT: Source = ["decode/merge.rs", "left.value(warp.lane()"];
/// The source lines that [`reason`] looks for.
#[cfg(test)]
pub(super) const LINES: [Source; 2] = [LENT, WEIGHT];

fn appends(symbol: &str) -> bool {
    symbol.starts_with("append_")
}

/// Whether the kernel decodes, or combines splits of a decode kernel.
fn decodes(symbol: &str) -> bool {
    ["decode_", "mixed_few_", "mixed_combine_"].iter().any(|family| symbol.starts_with(family))
}

fn is_paged(symbol: &str) -> bool {
    symbol.starts_with("paged_") || symbol.starts_with("mixed_many_")
}

pub(super) const HARMLESS: &[Harmless] = &[
    Harmless {
        operators: &[Operator::NegateBranch],
        source: ["delta.rs", "let is_first = p.cleared.count() > 0"],
        kernels: |symbol| symbol.starts_with("bwd_delta"),
        reason: "The portable kernels that follow take no tickets, so there is no word to mark.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne, Operator::NeverBranch],
        source: ["append.rs", "OwnPart::new(&p.parts, block)?"],
        kernels: appends,
        reason: "A thread without a part stores the bits that a thread of the next block also stores. Behind \
                 the last row, there is no slot.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["rotary.rs", "OwnPart::new(&p.append.parts, &block)"],
        kernels: appends,
        reason: "Behind the last row, there are zeros, no position and no slot.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["exchange/columns.rs", "if column < columns"],
        kernels: decodes,
        reason: "Columns behind the last one have a place too, and no thread reads it.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ChangePredicate],
        source: ["decode/schedule.rs", "tiles += Sequence::of"],
        kernels: decodes,
        reason: "Every block counts one tile more or less of equal sequences. The place of a split only \
                 affects speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne, Operator::Bound],
        source: ["lengths.rs", "GlobalInts::new(lengths).get(i) > 0"],
        kernels: decodes,
        reason: "Sequences without keys seem to have some, so a block searches a work item and finds none.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ChangePredicate],
        source: ["decode/schedule.rs", "let is_some = |i| lengths::is_some"],
        kernels: decodes,
        reason: "The number of sequences with keys matters only behind the device's shares, which these \
                 launches hardly exceed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::AlwaysBranch, Operator::NeverBranch],
        source: ["decode/schedule.rs", "} else if p.order.splits == 1 {"],
        kernels: decodes,
        reason: "Either search finds each item once. The search for whole sequences makes no splits, which \
                 only affects speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["decode/schedule.rs", "|| index < shares {"],
        kernels: decodes,
        reason: "The first block behind the device's shares searches for its work item, and finds none.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch],
        source: ["decode/schedule.rs", "let items = if groups <= 32"],
        kernels: decodes,
        reason: "With at most 32 groups of 32 sequences, blocks search for items behind the last one, and \
                 find none.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch],
        source: ["decode/schedule.rs", "for of in mine {"],
        kernels: decodes,
        reason: "All blocks count other tiles, but equal ones. The place of a split only affects speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ChangePredicate],
        source: ["decode/schedule.rs", "index % 2 * spread + index / 2"],
        kernels: decodes,
        reason: "Blocks take other work items, but each item still belongs to one block. The assignment only \
                 affects speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["shared_words.rs", "for (i, x) in words {"],
        kernels: decodes,
        reason: "A warp without sequences leaves zeros for sequences behind the last one, and no thread \
                 reads them.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["decode/schedule.rs", "if order.chunk.get() > 1 {"],
        kernels: decodes,
        reason: "Every block of a plan with chunks takes whole sequences. The place of a split affects \
                 speed, and bits, which `invariance` compares.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["steps.rs", "(at < self.end).then_some(at)"],
        kernels: |symbol| decodes(symbol) && symbol.contains("_8_"),
        reason: "With 8 rows or fewer, a step of 8 warps passes the end or meets it. The row is then the \
                 last row again, with equal numbers.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::AlwaysBranch],
        source: ["shared_words.rs", "if lane == 0 && i < N as u32 {"],
        kernels: decodes,
        reason: "All lanes have an equal word, so lanes other than the first one may write it. (With more \
                 sequences than a plan takes, the mutant would write outside of the place.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::Bound],
        source: ["blocks.rs", "(rows.first + rows.tile).min(rows.q_len)"],
        kernels: is_paged,
        reason: "The kernel takes one more block of keys, of which no row sees any. With the mask, these \
                 keys add nothing.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ConstantSourceSize],
        source: ["forward.rs", "slot.v.copy_whole(v"],
        kernels: is_paged,
        reason: "All rows of these blocks exist. A missing column of V only affects a missing column of O, \
                 which no thread stores. (If the column lies behind all memory, the mutant is caught.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::NeverBranch, Operator::Bound],
        source: ["decode/merge.rs", "if quad == 0 {"],
        kernels: decodes,
        reason: "All threads of a row compute an equal log-sum-exp. Any of them may store it, and so may all \
                 of them.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ShiftImmediate],
        instruction: ", 16, 1, %p",
        source: ["attention-tile/src/walk.rs", "self.source.chunk(self.cache, group, row"],
        kernels: |symbol| decodes(symbol) && !symbol.contains("e4m3"),
        reason: "The mutant copies one byte of a missing row, the lower byte of a 16-bit number. This number \
                 is finite, and the key is masked. (An 8-bit number may be NaN.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteWait],
        source: ["stream.rs", "::wait_all();"],
        kernels: decodes,
        reason: "The kernel gives up a ring after its last tile has landed. Later groups of copies are \
                 empty.",
        ..CLASS
    },
];

/// The reason why `mutant` of `subject` does no harm, under conditions that a class cannot express.
pub(super) fn reason(subject: &Subject, mutant: &Mutant, text: &str) -> Option<&'static str> {
    let lent = subject.merges()
        && subject.of.family() == "decode"
        && mutant.operator == Operator::DeleteBarrier
        && has_source(mutant, LENT);
    let of_16_bits = subject.of.family() == "decode" && !subject.kernel.symbol.contains("e4m3");
    let unscaled = of_16_bits && mutant.operator == Operator::ShiftImmediate && loads_scale(mutant);
    let past_columns = mutant.operator == Operator::NeverBranch
        && decodes(subject.kernel.symbol)
        && has_source(mutant, WEIGHT)
        && guard(mutant, text).is_some_and(is_past_columns);
    lent.then_some(
        "Only `lend` uses shared memory between these two barriers. It ends with a barrier, and the next \
         round begins with one. One of the two suffices.",
    )
    .or(unscaled.then_some(
        "A cache of 16 bits has no scales. Their addresses are 0, and the kernel does not use the memory \
         there.",
    ))
    .or(past_columns.then_some(
        "A lane behind a row's last column merges numbers from behind the row in the workspace, and stores \
         none of them.",
    ))
}

/// Whether a comparison tests a lane against the last four columns of a row that has fewer columns than a
/// warp stores.
fn is_past_columns(comparison: &str) -> bool {
    let [_, _, _, last] = words(comparison)[..] else { return false };
    comparison.contains("setp.gt.u32") && last.parse::<u32>().is_ok_and(|last| (1..31).contains(&last))
}

/// Whether the mutant loads another parameter instead of a stride of a scale, or loads a stride of 0 instead
/// of the address of the scale, which is also 0.
fn loads_scale(mutant: &Mutant) -> bool {
    let offsets = mutant.description.split("_param_0+").skip(1);
    let offsets =
        offsets.map(|rest| rest.split_once(']').and_then(|(offset, _)| offset.parse::<usize>().ok()));
    let [Some(Some(before)), after] = [0, 1].map(|n| offsets.clone().nth(n)) else { return false };
    let scales = [0, 1].map(|n| offset_of!(DecodeParams, scales) + n * size_of::<PerHead>());
    let is_stride = |offset: usize| {
        scales.iter().any(|base| (base + size_of::<u64>()..base + size_of::<[u64; 3]>()).contains(&offset))
    };
    is_stride(before) || scales.contains(&before) && after.flatten().is_some_and(is_stride)
}
