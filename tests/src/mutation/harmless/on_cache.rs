//! Harmless mutants of kernels that read integers from device memory: varlen kernels, and kernels on caches.
use super::{flow::words, guard, has_source, lines::Source};
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

/// Whether the kernel decodes, or combines splits of a decode kernel.
fn decodes(symbol: &str) -> bool {
    ["decode_", "mixed_few_", "mixed_combine_"].iter().any(|family| symbol.starts_with(family))
}

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
