//! Harmless mutants of kernels that read integers in device memory: varlen kernels, and kernels on caches.
use super::{CLASS, Harmless, flow::words, guard, has_source, lines::Source};
use crate::mutation::Subject;
use core::mem::offset_of;
use ferroflash::spec::{DecodeParams, PerHead};
use ptx_sim::mutate::{Mutant, Operator};

const LENT: Source = ["block.rs", "block.sync();"];
/// A line under which LLVM also tests whether a lane has columns.
const WEIGHT: Source = ["decode/merge.rs", "left.value(warp.lane()"];
/// The lines that [`reason`] looks for.
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
        operators: &[Operator::OffByOne, Operator::NeverBranch],
        source: ["append.rs", "OwnPart::new(&p.parts, block)?"],
        kernels: appends,
        reason: "A thread without a part does what one of the next block does, bit by bit; behind the last \
                 row there is no slot.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch, Operator::OffByOne],
        source: ["exchange/columns.rs", "if column < columns"],
        kernels: decodes,
        reason: "Columns behind the last have a place, too, which nobody reads.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ChangePredicate],
        source: ["decode/schedule.rs", "tiles += Sequence::of"],
        kernels: decodes,
        reason: "Every block counts a tile more of the same sequences, or one less: where keys are cut is a \
                 matter of speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::Bound],
        instruction: "`max.s32",
        source: ["decode/schedule.rs", "alive += u32::from"],
        kernels: decodes,
        reason: "A sequence too many that seems to have keys lets a block look for an item in vain.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch],
        source: ["decode/schedule.rs", "for of in mine {"],
        kernels: decodes,
        reason: "Every block counts other tiles, all the same: where keys are cut is a matter of speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ChangePredicate],
        source: ["decode/schedule.rs", "index % 2 * spread + index / 2"],
        kernels: decodes,
        reason: "Blocks take other items, each still one block's: who takes which is a matter of speed.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["tally.rs", "for (i, x) in words {"],
        kernels: decodes,
        reason: "A warp without sequences leaves zeros for some behind the last, which nobody reads.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["decode/schedule.rs", "if order.chunk.get() > 1 {"],
        kernels: decodes,
        reason: "Every block of a plan in chunks takes sequences whole: where keys are cut is a matter of \
                 speed, and of bits, which `invariance` compares.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["steps.rs", "(at < self.end).then_some(at)"],
        kernels: |symbol| decodes(symbol) && symbol.contains("_8_"),
        reason: "Steps of 8 warps go beyond 8 rows and fewer, or end at 8: the row is then the last one \
                 again, by the same numbers.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::AlwaysBranch],
        source: ["tally.rs", "if lane == 0 && i < N as u32 {"],
        kernels: decodes,
        reason: "All lanes have the same word: others than the first leave it. (Where there is no place, \
                 with more sequences than a plan takes, the mutant would write elsewhere.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::Bound],
        source: ["blocks.rs", "(rows.first + rows.tile).min(rows.q_len)"],
        kernels: is_paged,
        reason: "One block of keys more, of which no row sees any: masked, they add nothing.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ConstantSourceSize],
        source: ["forward.rs", "slot.v.copy_whole(v"],
        kernels: is_paged,
        reason: "All rows of these blocks exist; a column of V that does not makes a column of O that nobody \
                 stores. (Where it lies behind all memory, the mutant is caught.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NegateBranch, Operator::NeverBranch, Operator::Bound],
        source: ["decode/merge.rs", "if quad == 0 {"],
        kernels: decodes,
        reason: "All threads of a row compute the same log-sum-exp: each of them may store it, and all of \
                 them.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::ShiftImmediate],
        instruction: ", 16, 1, %p",
        source: ["attention-tile/src/walk.rs", "self.source.chunk(self.cache, group, row"],
        kernels: |symbol| decodes(symbol) && !symbol.contains("e4m3"),
        reason: "Of a row that does not exist one byte is copied, the lower one of a number of 16 bits, \
                 which is finite: the key is masked. (Of 8 bits, it may be a NaN.)",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::DeleteWait],
        source: ["stream.rs", "::wait_all();"],
        kernels: decodes,
        reason: "A ring is given up after its last tile, whose copies have landed: groups behind are empty.",
        ..CLASS
    },
];

/// Why `mutant` of `subject` does no harm, under conditions that a class cannot express.
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
        "Shared memory is used between two barriers by `lend` alone, which ends with a barrier of its own, \
         and then comes the next round's: one of the two is enough.",
    )
    .or(unscaled.then_some(
        "A cache of 16 bits has no scales: their addresses are 0, and what stands behind these is not used.",
    ))
    .or(past_columns.then_some(
        "A lane behind a row's last column merges numbers that stand behind the row in the workspace: it \
         stores none of them.",
    ))
}

/// Whether a comparison tests a lane against the last four columns of a row that is narrower than a warp.
fn is_past_columns(comparison: &str) -> bool {
    let [_, _, _, last] = words(comparison)[..] else { return false };
    comparison.contains("setp.gt.u32") && last.parse::<u32>().is_ok_and(|last| (1..31).contains(&last))
}

/// Whether the mutant loads another parameter for a stride of a scale, or a stride of 0 for the scale's
/// address, which is 0 too.
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
