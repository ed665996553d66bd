//! Selection of MLA decode kernels: few queries on a latent cache.
use super::pays::of_short_splits;
use super::rule::Case;
use super::{Choice, Query, rules};
use crate::request::Splits;
use crate::schedule::row_blocks;
use crate::{AttnInfo, Error};
use core::cmp::Reverse;
use spec::Class;

const CHUNKED: &str = "a latent cache; batch-invariant splits (`Splits::Chunk`): one kernel for pages of all \
                       sizes";
const STATES: &str = "a latent cache, and states over other keys, which no Hopper kernel merges";

/// Returns the best kernel. The best portable kernel has the fewest thread blocks, then the fewest rows, then
/// the most stages, except as [`splits_fill`] and [`splits_are_short`] say. For chunks, the choice does not
/// depend on the batch, so chunks are batch-invariant. Where this is a block of 64 rows, a Hopper kernel
/// replaces it if it takes the tensors.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device.
pub(super) fn choose(q: &Query<'_>) -> Result<Choice, Error> {
    let p = q.problem;
    let all: Vec<_> = q.solving(Class::Latent).collect();
    let chosen = |e: &'static AttnInfo| {
        rules::choose(&Case { q, kernels: &[e], all: &all }).unwrap_or(Choice::new(e, CHUNKED))
    };
    let portable = portable(q, &all)?;
    let replaces = |e: &&AttnInfo| e.has_maps() && e.tile_m == portable.tile_m && q.runs(e);
    let Some(hopper) = all.iter().copied().find(replaces) else { return Ok(chosen(portable)) };
    let takes = match p.splits {
        Splits::Chunk(_) => Err(CHUNKED),
        _ if q.merges_states => Err(STATES),
        _ => q.layout.suits(hopper),
    };
    Ok(match takes {
        Ok(()) => Choice { fallback: Some(portable), ..chosen(hopper) },
        Err(reason) => Choice::new(portable, reason),
    })
}

/// Returns the best portable kernel.
///
/// # Errors
/// Returns [`Error::Unsupported`] if none solves the problem on this device.
fn portable(q: &Query<'_>, all: &[&'static AttnInfo]) -> Result<&'static AttnInfo, Error> {
    let (p, on) = (q.problem, q.on);
    let fitting = || all.iter().copied().filter(|e| !e.has_maps());
    let running = || fitting().filter(|e| q.runs(e));
    if let Some(entry) = of_short_splits(q, all) {
        return Ok(entry);
    }
    let blocks_per_sm = |e: &AttnInfo| if splits_fill(q) { on.blocks_per_sm(&e.contract) } else { 0 };
    let size = |e: &&AttnInfo| (row_blocks(e, p), e.tile_m, Reverse(blocks_per_sm(e)), Reverse(e.stages));
    let Some(entry) = running().min_by_key(size).or_else(|| fitting().min_by_key(size)) else {
        let reason = "no kernel has these numbers of columns";
        return Err(Error::unsupported(format_args!("{p} on a latent cache"), reason));
    };
    on.runs(&entry.contract)?;
    Ok(entry)
}

/// Whether each sequence gets at least four shares of the device. The splits are then short, and two thread
/// blocks of an SM hide each other's latency; longer work runs faster in one thread block with more stages
/// (H200, 16 heads: 8 x 32768 keys 94.5 us instead of 116.1, 128 x 1024 keys 63.9 us instead of 59.9). A few
/// sequences are excluded, because twice as many splits cost more to merge than they gain.
///
/// Only Hopper is measured. An A100 has half of an H200's bandwidth per SM, so that it waits for bytes.
fn splits_fill(q: &Query<'_>) -> bool {
    let work = q.problem.batch * q.problem.heads_k;
    let measured = q.on.compute_capability == (9, 0) && q.problem.splits == Splits::Auto;
    measured && (8..=q.on.sms as usize / 4).contains(&work)
}
