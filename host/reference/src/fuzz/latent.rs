//! Random problems on latent caches.
use super::drawn::{dtype, lengths, most_queries, told};
use super::{Limits, below, one_in, pick};
use crate::decode::{DecodeCase, DecodeMemory, Pages};
use crate::inputs::Random;
use crate::work::Work;
use ferroflash::request::{Mask, Splits};

/// Draws a decode problem of up to four queries, or of up to 16 rows for a simulator.
pub(super) fn draw(random: &mut Random, limits: Limits) -> (Box<dyn Work + Send>, String) {
    let (own, batch) = (dtype(random), 1 + below(random, limits.sequences));
    let filled = lengths(random, batch, limits.seqlen);
    let max_k = filled.iter().max().copied().unwrap_or(0).max(1) + below(random, 40);
    // Half of the problems have DeepSeek's numbers of columns. The other half have random numbers of columns.
    let columns = if one_in(random, 2) { 512 } else { 8 * (1 + below(random, 64)) };
    let head_dim = if columns == 512 { 576 } else { columns + 8 * (1 + below(random, 8)) };
    let [heads_k, queries] = [1 + below(random, 2), 1 + below(random, 4)];
    let most = most_queries(limits, &filled, heads_k * queries * head_dim);
    let group = 1 + below(random, most.min(if limits.overlaps { 128 } else { 16 / queries }));
    let splits = [
        Splits::Auto,
        Splits::Exactly(1 + below(random, 5) as u32),
        Splits::Chunk(128 * (1 + below(random, 2) as u32)),
    ];
    let case = DecodeCase {
        dtype: own,
        cache: own,
        max_k,
        queries,
        heads: [heads_k * group, heads_k],
        head_dim,
        head_dim_v: Some(columns),
        latent: true,
        pages: pick(random, &[Pages::Dense, Pages::Rows, Pages::Nhd(1), Pages::Nhd(7), Pages::Nhd(64)]),
        mask: pick(random, &[Mask::Full, Mask::Causal, Mask::Window { left: None, right: Some(2) }]),
        scale: Some(0.02 + below(random, 32) as f32 / 128.0),
        sinks: one_in(random, 3),
        splits: pick(random, &splits),
        counters: one_in(random, 2),
        told: told(random, limits, false),
        ..DecodeCase::new(filled)
    }
    .seeded(random.bits());
    let text = format!("{case}, keys {:?}", case.filled);
    (Box::new(DecodeMemory::new(&case)), text)
}
