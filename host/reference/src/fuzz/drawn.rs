//! Random parts of problems on sequences.
use super::{Limits, below, pick};
use crate::inputs::Random;
use crate::told::Told;
use ferroflash::DType;

pub(super) fn dtype(random: &mut Random) -> DType {
    pick(random, &[DType::F16, DType::Bf16])
}

/// Returns random lengths: short and long lengths, and some lengths of 0.
pub(super) fn lengths(random: &mut Random, count: usize, most: usize) -> Vec<usize> {
    let length = |random: &mut Random| match below(random, 4) {
        0 => pick(random, &[0, 1, 15, 16, 17, 63, 64, 65, 127, 128]).min(most),
        1 => below(random, 10),
        _ => below(random, most + 1),
    };
    (0..count).map(|_| length(random)).collect()
}

/// Returns the largest number of queries per sequence that `limits` permit on these keys.
pub(super) fn most_queries(limits: Limits, keys: &[usize], elements: usize) -> usize {
    (limits.products / elements / (1 + keys.iter().sum::<usize>())).clamp(1, limits.seqlen)
}

/// Returns the integers of one plan's launches. Overlapping sequences occur only if `limits` permit them,
/// because the simulator reports them as races.
pub(super) fn told(random: &mut Random, limits: Limits, packed: bool) -> Vec<Told> {
    let mut told = vec![Told::Filled, Told::Fewer(random.bits()), Told::Garbage(random.bits())];
    if packed && limits.overlaps {
        told.push(Told::Lost(random.bits()));
    }
    told.push(Told::Filled);
    told
}
