//! Random groups of sequences that share their first pages.
use super::drawn::{dtype, told};
use super::{Limits, below, one_in, pick};
use crate::decode::{DecodeCase, DecodeMemory, Pages, Shared};
use crate::inputs::Random;
use crate::work::Work;
use ferroflash::DType;
use ferroflash::request::Mask;

/// Draws groups that the host or the device knows. The launch makes two passes.
pub(super) fn draw(random: &mut Random, limits: Limits) -> (Box<dyn Work + Send>, String) {
    let (own, eight, varlen) = (dtype(random), one_in(random, 3), one_in(random, 2));
    let page = pick(random, &[1, 5, 16, 24]);
    let group = |random: &mut Random| [1 + below(random, 6), below(random, 5) + usize::from(!varlen)];
    let first = group(random);
    let groups = (0..1 + below(random, 3)).map(|_| if varlen { group(random) } else { first });
    let groups: Vec<_> = groups.collect();
    let (queries, heads_k) = (1 + below(random, 4), 1 + below(random, 2));
    let heads = heads_k * (1 + below(random, 8));
    // Under a causal mask, a sequence has at least the keys of all but one of its queries behind its prefix.
    let rest = |random: &mut Random| queries - 1 + below(random, 1 + limits.seqlen / 4);
    let filled: Vec<_> = groups
        .iter()
        .flat_map(|[count, pages]| (0..*count).map(|_| pages * page + rest(random)).collect::<Vec<_>>())
        .collect();
    let head_dim = pick(random, &[16, 48, 64, 80, 128]);
    let case = DecodeCase {
        dtype: own,
        cache: if eight { DType::E4m3 } else { own },
        max_k: filled.iter().max().copied().unwrap_or(1) + page,
        queries,
        heads: [heads, heads_k],
        head_dim,
        pages: pick(random, &[Pages::Nhd(page), Pages::Hnd(page), Pages::Interleaved(page)]),
        mask: pick(random, &[Mask::Full, Mask::Causal]),
        softcap: one_in(random, 6).then(|| 1.0 + below(random, 50) as f32),
        sinks: one_in(random, 3),
        counters: one_in(random, 2),
        shared: Some(Shared { groups, varlen, always: true }),
        told: told(random, limits, false),
        ..DecodeCase::new(filled)
    }
    .seeded(random.bits());
    let text = format!("{case}, keys {:?}, {:?}", case.filled, case.shared);
    (Box::new(DecodeMemory::new(&case)), text)
}
