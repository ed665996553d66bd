//! The test problems of kernels of statistics: the edges of forward kernels for these tensors, with all
//! outputs of rows.
use crate::case::Case;
use ferroflash::request::RowOutputs;
use ferroflash::spec::{AttnInfo, Keys};

/// Returns problems that hit an entry's edges. Sinks change no statistics. Only the kernel of latent caches
/// has their number of columns.
pub fn edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let is_of_latents = entry.head_dim > 512;
    let mut cases = match is_of_latents {
        true => super::seeded(super::latent::edges(entry), seed),
        false => super::edges_of_class(entry, seed),
    };
    if matches!(entry.keys, Keys::Batched) {
        let sunk = cases.iter().filter(|case| case.softcap.is_none() && !case.alibi).take(2).cloned();
        let sunk: Vec<_> = sunk.map(|case| Case { sinks: true, ..case }).collect();
        cases.extend(sunk);
    }
    let rows = RowOutputs { lse: true, max_logits: true, entropy: true };
    let head_dim_v =
        |case: &Case| if is_of_latents { case.head_dim_v.or(Some(512)) } else { case.head_dim_v };
    cases.into_iter().map(|case| Case { rows, head_dim_v: head_dim_v(&case), ..case }).collect()
}
